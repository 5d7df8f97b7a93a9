// Unpacks the facts and arrays of each run (pack.py) and the charting library.

const VIEWS = {
  int16: Int16Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  int32: Int32Array,
  float32: Float32Array,
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
    const size = shape.reduce((a, b) => a * b, 1),
      View = VIEWS[type];
    const data = new View(buffer, start + at, size);
    run.arrays[name] = { data, shape };
  }
  run.cellOf = new Int32Array(run.models);
  run.cells.forEach((cell, i) => {
    run.cellOf.fill(i, cell.start, cell.start + cell.count);
  });
  run.at = new Map();
  for (let i = 0; i < run.models; i++) run.at.set(idOf(run, i), i);
  return run;
}

// The subarray at the given first indices.
function part(run, name, ...indices) {
  const { data, shape } = run.arrays[name];
  let from = 0,
    size = data.length;
  indices.forEach((index, axis) => {
    size /= shape[axis];
    from += index * size;
  });
  return data.subarray(from, from + size);
}

// A curve of a model, from sixteen bits (gather.py).
function curveValues(run, name, ...indices) {
  const [low, high] = part(run, `${name}-ends`, ...indices);
  return Array.from(part(run, name, ...indices), (code) =>
    code === 65535 ? NaN : low + ((high - low) * code) / 65534,
  );
}

const cellAt = (run, model) => run.cells[run.cellOf[model]];
const settingAt = (run, model) => run.settings[cellAt(run, model).setting];

function idOf(run, model) {
  const cell = cellAt(run, model);
  return `${run.settings[cell.setting].name}/${run.variants[cell.variant]}/${part(run, "draw")[model]}`;
}

// The models of the same draw, one per variant: they share hyperparameters, initial weights and minibatches.
function sameDraw(run, model) {
  const own = cellAt(run, model),
    draw = part(run, "draw");
  return run.cells
    .filter((cell) => cell.setting === own.setting)
    .flatMap(({ start, count }) => {
      const at = draw.subarray(start, start + count).indexOf(draw[model]);
      return at < 0 ? [] : [start + at];
    });
}

const hasNew = (setting) => setting.lengths.some((length) => length > setting.trainLength);

// Where violins of a setting are stored: `at` is "all" lengths, "new" lengths, or one length; -1 if there are none.
function columnOf(setting, at) {
  if (at === "all") return 0;
  if (at === "new") return hasNew(setting) ? 1 : -1;
  const column = setting.lengths.indexOf(at);
  return column < 0 ? -1 : 2 + column;
}

// The value of a model over all lengths, over new lengths or at one length; NaN if there is none.
function scoreOf(run, metric, weights, model, at) {
  const column = columnOf(settingAt(run, model), at);
  if (column < 0) return NaN;
  if (column < 2) return part(run, column ? "new" : "mean", metric, weights)[model];
  return part(run, "value", metric, weights, model)[column - 2];
}

// The same of a guess that ignores the input; null if it is not known.
function guessOf(setting, metric, at) {
  const guess = setting.guess[metric];
  if (!guess) return null;
  return (typeof at === "number" ? guess.at[setting.lengths.indexOf(at)] : guess[at]) ?? null;
}
