// Unpacks the facts and arrays of each run (pack.py) and the charting library.

const HALF = new Float32Array(65536);
for (let bits = 0; bits < 65536; bits++) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  HALF[bits] = sign * (exponent === 31 ? (fraction ? NaN : Infinity)
    : exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}
const VIEWS = {
  int8: Int8Array, uint8: Uint8Array, int32: Int32Array, float32: Float32Array,
  float16: (buffer, at, size) => Float32Array.from(new Uint16Array(buffer, at, size), (bits) => HALF[bits]),
};

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

async function readRun(text) {
  const buffer = await unpack(text);
  const length = new DataView(buffer).getUint32(0, true);
  const run = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = Math.ceil((4 + length) / 8) * 8;
  for (const [name, { type, at, shape }] of Object.entries(run.arrays)) {
    const size = shape.reduce((a, b) => a * b, 1), View = VIEWS[type];
    const data = type === "float16" ? View(buffer, start + at, size) : new View(buffer, start + at, size);
    run.arrays[name] = { data, shape };
  }
  run.cellOf = new Int32Array(run.models);
  run.cells.forEach((cell, i) => run.cellOf.fill(i, cell.start, cell.start + cell.count));
  run.at = new Map();
  for (let i = 0; i < run.models; i++) run.at.set(idOf(run, i), i);
  return run;
}

// The subarray at the given first indices.
function part(run, name, ...indices) {
  const { data, shape } = run.arrays[name];
  let from = 0, size = data.length;
  indices.forEach((index, axis) => { size /= shape[axis]; from += index * size; });
  return data.subarray(from, from + size);
}

const cellAt = (run, model) => run.cells[run.cellOf[model]];
const settingAt = (run, model) => run.settings[cellAt(run, model).setting];

function idOf(run, model) {
  const cell = cellAt(run, model);
  return `${run.settings[cell.setting].name}/${run.variants[cell.variant]}/${part(run, "draw")[model]}`;
}

// The models of the same draw, one per variant: they share hyperparameters, initial weights and minibatches.
function sameDraw(run, model) {
  const own = cellAt(run, model), draw = part(run, "draw");
  return run.cells.filter((cell) => cell.setting === own.setting).flatMap(({ start, count }) => {
    const at = draw.subarray(start, start + count).indexOf(draw[model]);
    return at < 0 ? [] : [start + at];
  });
}

// The value of a model at a length, or over all lengths if none is given; NaN if there is none.
function valueOf(run, metric, weights, model, length = null) {
  if (length === null) return part(run, "mean", metric, weights)[model];
  const column = settingAt(run, model).lengths.indexOf(length);
  return column < 0 ? NaN : part(run, "value", metric, weights, model)[column];
}
