// Hyperparameters as parallel coordinates: lines of a sample of models; a range on an axis selects among all models.

const MOST_LINES = 700;
const SCORE = "score";
let columns = [];

function axisValues(run, name) {
  if (name === SCORE) return part(run, "mean", state.metric, state.weights[0] ? 0 : 1);
  return part(run, "hyper", run.hyperparameters.findIndex((h) => h.name === name));
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);

function axesOf(run) {
  const named = [...run.hyperparameters, { name: SCORE, log: false }];
  return named.map(({ name, log }) => {
    const x = axisValues(run, name), known = x.filter((value) => !Number.isNaN(value));
    const low = least(known), high = -least(known.map((value) => -value));
    // zero, which has no logarithm, is drawn below the smallest value
    const logs = log && high > 0, bottom = low > 0 ? low : least(known.filter((value) => value > 0)) / 2;
    const scaled = logs ? (v) => Math.log(Math.max(v, bottom)) : (v) => v, from = scaled(low), to = scaled(high);
    const back = (u) => (logs ? Math.exp(from + u * (to - from)) : from + u * (to - from));
    return { name, x, low, high, place: (v) => (scaled(v) - from) / (to - from), back };
  }).filter(({ low, high }) => low < high);
}

function linesOf(models) {
  const x = [], y = [];
  for (const model of models) {
    columns.forEach((column, k) => { const at = column.place(column.x[model]); x.push(k); y.push(Number.isNaN(at) ? null : at); });
    x.push(null); y.push(null);
  }
  return { x, y };
}

// An even sample of the shown models, in which every violin is represented.
function sample(run, chosen) {
  const all = [];
  for (let i = 0; i < run.models; i++) if (isShown(i) && (!chosen || chosen[i])) all.push(i);
  const every = Math.max(1, all.length / MOST_LINES);
  return Array.from({ length: Math.ceil(all.length / every) }, (_, i) => all[Math.floor(i * every)]);
}

function isBest(run, model) {
  const weights = state.weights[0] ? 0 : 1, limit = part(run, "ends", state.metric, run.cellOf[model], weights, 0)[3];
  const value = part(run, "mean", state.metric, weights)[model];
  return run.metrics[state.metric].lowerIsBetter ? value <= limit : value >= limit;
}

function drawParallel() {
  const run = state.run, chosen = selection();
  columns = axesOf(run);
  $("among").hidden = columns.length < 2;
  if (columns.length < 2) return;
  const models = sample(run, null), front = chosen ? sample(run, chosen) : models;
  const style = (color, width, opacity) => ({ mode: "lines", hoverinfo: "skip", opacity, line: { color, width, simplify: false } });
  const best = front.filter((model) => isBest(run, model)), rest = front.filter((model) => !isBest(run, model));
  const traces = [
    { ...style(css("other"), 0.5, chosen ? 0.12 : 0), ...(chosen ? linesOf(models) : { x: [], y: [] }) },
    { ...style(css("other"), 0.7, 0.35), ...linesOf(rest) },
    { ...style(css("best"), 1, 0.55), ...linesOf(best) },
    { ...style(css("pin"), 3, 1), ...linesOf(state.pinned === null ? [] : [state.pinned]) },
  ];
  const shapes = columns.map((_, k) => ({ type: "line", x0: k, x1: k, y0: 0, y1: 1, layer: "below", line: { color: css("soft"), width: 1 } }));
  columns.forEach((column, k) => {
    const range = state.brushes[column.name];
    if (range) shapes.push({ type: "rect", x0: k - 0.09, x1: k + 0.09, y0: column.place(range[0]), y1: column.place(range[1]), fillcolor: css("pin"), opacity: 0.6, line: { width: 0 } });
  });
  const note = (k, y, text, more = {}) => ({ x: k, y, text, showarrow: false, font: { size: 10.5, color: css("soft") }, ...more });
  const annotations = columns.flatMap((column, k) => [
    note(k, 1, number(column.high, 2), { yanchor: "bottom", yshift: 2 }), note(k, 0, number(column.low, 2), { yanchor: "top", yshift: -2 }),
    note(k, 0, plain(column.name === SCORE ? run.metrics[state.metric].label : words(column.name)), { yanchor: "top", xanchor: "right", yshift: -20, xshift: 8, textangle: -28, font: { size: 12, color: css("ink") } }),
  ]);
  const plot = $("parallel");
  Plotly.react(plot, traces, layout({
    width: plot.clientWidth, height: 430, shapes, annotations, dragmode: "select", selectdirection: "any", margin: { l: 84, r: 28, t: 24, b: 120 },
    xaxis: { range: [-0.3, columns.length - 0.7], visible: false, fixedrange: true }, yaxis: { range: [-0.01, 1.01], visible: false, fixedrange: true },
    newselection: { line: { color: css("pin"), width: 1 } },
  }), { displayModeBar: false, responsive: false, showTips: false });
  if (!plot.listening) listenToParallel(plot);
}

function listenToParallel(plot) {
  plot.listening = true;
  plot.on("plotly_selected", (event) => {
    if (!event?.range) return;
    const [x0, x1] = [...event.range.x].sort((a, b) => a - b), [y0, y1] = [...event.range.y].sort((a, b) => a - b);
    const brushes = { ...state.brushes }, inside = columns.map((_, k) => k).filter((k) => k >= x0 && k <= x1);
    const nearest = Math.max(0, Math.min(columns.length - 1, Math.round((x0 + x1) / 2)));
    for (const k of inside.length ? inside : [nearest]) brushes[columns[k].name] = [columns[k].back(y0), columns[k].back(y1)];
    Plotly.relayout(plot, { selections: [] });
    change({ brushes });
  });
  plot.on("plotly_doubleclick", () => change({ brushes: {}, boxed: null }));
}

panels.push({ needs: ["run", "metric", "by", "setting", "variants", "weights", "theme", "pinned", "brushes", "boxed"], draw: drawParallel });
