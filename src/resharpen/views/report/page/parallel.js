// Hyperparameters as parallel coordinates: lines of a sample of models; a range on an axis selects among all models.

const MOST_LINES = 700;
const SCORE = "score";
let columns = [];

const scoreAt = () => (state.by === "length" ? "all" : state.at);

function axisValues(run, name) {
  if (name !== SCORE)
    return part(
      run,
      "hyper",
      run.hyperparameters.findIndex((h) => h.name === name),
    );
  return Float32Array.from({ length: run.models }, (_, i) => scoreOf(run, state.metric, shownWeights(), i, scoreAt()));
}

function axesOf(run) {
  const named = [...run.hyperparameters, { name: SCORE, log: false }];
  return named
    .map(({ name, log }) => {
      const x = axisValues(run, name),
        [low, high] = extent(x);
      // zero, which has no logarithm, is drawn below the smallest value
      const logs = log && high > 0,
        bottom = low > 0 ? low : extent(x.filter((value) => value > 0))[0] / 2;
      const scaled = logs ? (v) => Math.log(Math.max(v, bottom)) : (v) => v,
        from = scaled(low),
        to = scaled(high);
      const back = (u) => (logs ? Math.exp(from + u * (to - from)) : from + u * (to - from));
      return { name, x, low, high, place: (v) => (scaled(v) - from) / (to - from), back };
    })
    .filter(({ low, high }) => low < high);
}

function linesOf(models) {
  const x = [],
    y = [];
  for (const model of models) {
    columns.forEach((column, k) => {
      const at = column.place(column.x[model]);
      x.push(k);
      y.push(Number.isNaN(at) ? null : at);
    });
    x.push(null);
    y.push(null);
  }
  return { x, y };
}

function shownModels(run, chosen) {
  const all = [];
  for (let i = 0; i < run.models; i++) if (isShown(i) && (!chosen || chosen[i])) all.push(i);
  return all;
}

// An even sample, in which every violin is represented.
function sampleOf(all) {
  const every = Math.max(1, all.length / MOST_LINES);
  return Array.from({ length: Math.ceil(all.length / every) }, (_, i) => all[Math.floor(i * every)]);
}

function isBest(run, model) {
  const column = columnOf(settingAt(run, model), scoreAt());
  if (column < 0) return false;
  const limit = part(run, "ends", state.metric, run.cellOf[model], shownWeights(), column)[3],
    value = scoreOf(run, state.metric, shownWeights(), model, scoreAt());
  return run.metrics[state.metric].lowerIsBetter ? value <= limit : value >= limit;
}

const axisLabel = (run, name) =>
  name === SCORE ? `${run.metrics[state.metric].label}, ${atText(scoreAt())}` : words(name);

function drawParallel() {
  const run = state.run,
    chosen = selection(),
    plot = $("parallel");
  columns = axesOf(run);
  $("among").hidden = columns.length < 2;
  if (columns.length < 2) return;
  const all = shownModels(run, null),
    models = sampleOf(all),
    some = chosen ? shownModels(run, chosen) : all,
    front = chosen ? sampleOf(some) : models;
  $("drawn").textContent =
    `${count(front.length)} of ${count(some.length)} ${chosen ? "selected models" : "models"} drawn as lines.`;
  const style = (color, width, opacity) => ({
    mode: "lines",
    hoverinfo: "skip",
    opacity,
    line: { color, width, simplify: false },
  });
  const best = front.filter((model) => isBest(run, model)),
    rest = front.filter((model) => !isBest(run, model));
  const traces = [
    { ...style(css("other"), 0.5, chosen ? 0.12 : 0), ...(chosen ? linesOf(models) : { x: [], y: [] }) },
    { ...style(css("other"), 0.7, 0.35), ...linesOf(rest) },
    { ...style(css("best"), 1, 0.55), ...linesOf(best) },
    { ...style(css("pin"), 3, 1), ...linesOf(state.pinned === null ? [] : [state.pinned]) },
  ];
  const ruler = (k) => ({
    type: "line",
    x0: k,
    x1: k,
    y0: 0,
    y1: 1,
    layer: "below",
    line: { color: css("soft"), width: 1 },
  });
  const shapes = columns.map((_, k) => ruler(k));
  columns.forEach((column, k) => {
    const range = state.brushes[column.name];
    if (!range) return;
    const [y0, y1] = range.map(column.place);
    shapes.push({
      type: "rect",
      x0: k - 0.09,
      x1: k + 0.09,
      y0,
      y1,
      fillcolor: css("pin"),
      opacity: 0.6,
      line: { width: 0 },
    });
  });
  const note = (k, y, text, more = {}) => ({
    x: k,
    y,
    text,
    showarrow: false,
    font: { size: 10.5, color: css("soft") },
    ...more,
  });
  const name = {
    yanchor: "top",
    xanchor: "right",
    yshift: -20,
    xshift: 8,
    textangle: -28,
    font: { size: 12, color: css("ink") },
  };
  const annotations = columns.flatMap((column, k) => [
    note(k, 1, number(column.high, 2), { yanchor: "bottom", yshift: 2 }),
    note(k, 0, number(column.low, 2), { yanchor: "top", yshift: -2 }),
    note(k, 0, plain(axisLabel(run, column.name)), name),
  ]);
  plot.hidden = false;
  Plotly.react(
    plot,
    traces,
    layout({
      width: plot.clientWidth || 860,
      height: 430,
      shapes,
      annotations,
      margin: { l: 84, r: 28, t: 24, b: 120 },
      xaxis: { range: [-0.3, columns.length - 0.7], visible: false, fixedrange: true },
      yaxis: { range: [-0.01, 1.01], visible: false, fixedrange: true },
    }),
    { displayModeBar: false, responsive: false, showTips: false },
  );
  drawStrips(plot);
  parallelAsTable.refresh();
  if (parallelAsTable.ariaPressed === "true") plot.hidden = true;
}

// One row per axis: the range of all models, and the middle of the best ones.
function parallelTable() {
  const run = state.run,
    models = shownModels(run, selection()),
    best = models.filter((model) => isBest(run, model));
  const rows = columns.map(({ name, x }) => {
    const [low, high] = extent(models.map((i) => x[i]));
    return [
      axisLabel(run, name),
      number(low, 3),
      number(median(models.map((i) => x[i])), 3),
      number(high, 3),
      number(median(best.map((i) => x[i])), 3),
    ];
  });
  return table(["hyperparameter", "lowest", "median", "highest", "median of the best tenth"], rows);
}

// One strip per axis takes the drags that begin nearest to it, whatever their direction.
function drawStrips(plot) {
  const { xaxis, yaxis } = plot._fullLayout,
    box = $("strips"),
    at = (k) => xaxis._offset + xaxis.d2p(k);
  Object.assign(box.style, { top: `${yaxis._offset}px`, height: `${yaxis._length}px` });
  const width = columns.length > 1 ? at(1) - at(0) : xaxis._length;
  box.replaceChildren(
    ...columns.map((column, k) => {
      const strip = el("div", { className: "strip", title: "" }, el("div", { className: "core" }));
      Object.assign(strip.style, { left: `${at(k) - width / 2}px`, width: `${width}px` });
      listenToStrip(strip, column);
      return strip;
    }),
  );
}

const BARELY = 4; // pixels: less is a click

function listenToStrip(strip, column) {
  let began = null;
  const level = (event) => event.clientY - strip.getBoundingClientRect().top;
  const value = (pixels) => column.back(Math.max(0, Math.min(1, 1.01 - (1.02 * pixels) / strip.clientHeight)));
  const box = el("div", { className: "brush" });
  const stop = () => {
    began = null;
    box.remove();
  };
  strip.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    began = level(event);
    strip.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  strip.addEventListener("pointermove", (event) => {
    if (began === null) return;
    const now = Math.max(0, Math.min(strip.clientHeight, level(event)));
    Object.assign(box.style, { top: `${Math.min(began, now)}px`, height: `${Math.abs(now - began)}px` });
    strip.append(box);
  });
  strip.addEventListener("pointerup", (event) => {
    if (began === null) return;
    const ends = [value(began), value(level(event))].sort((a, b) => a - b),
      moved = Math.abs(level(event) - began) > BARELY,
      brushes = { ...state.brushes };
    stop();
    if (moved) brushes[column.name] = ends;
    else delete brushes[column.name];
    change({ brushes });
  });
  strip.addEventListener("pointercancel", stop);
  strip.addEventListener("dblclick", () => change(NOTHING_SELECTED));
}

const parallelAsTable = tableButton($("parallel"), parallelTable);
$("among-head").append(parallelAsTable);

panels.push({
  needs: ["run", "metric", "by", "at", "setting", "variants", "weights", "theme", "pinned", ...SELECTION],
  draw: drawParallel,
});
