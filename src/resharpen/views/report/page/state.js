// The state of the page, the panels that show it, and helpers that all panels use.

const state = {
  run: null, metric: 0, by: "length", length: null, setting: 0, variants: [], weights: [true, true],
  pinned: null, brushes: {}, boxed: null, theme: "light",
};
const panels = [];  // {needs: names in the state that it shows, draw}
const $ = (id) => document.getElementById(id);

function change(patch) {
  Object.assign(state, patch);
  const changed = Object.keys(patch);
  for (const { needs, draw } of panels) if (needs.some((name) => changed.includes(name))) draw(changed);
}

// Everything is added to the page as text or property, never as markup.
function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null));
  return element;
}

// plotly interprets some markup in texts; names must not be interpreted.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const number = (x, digits = 4) => x === null || Number.isNaN(x) ? "none" : x !== 0 && Math.abs(x) < 0.001
  ? x.toExponential(1).replace("-0", "-") : Math.abs(x) >= 1e5 ? x.toExponential(1) : String(+x.toPrecision(digits));
const many = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
const words = (name) => name.replaceAll("_", " ");
const WEIGHTS = ["training weights", "BEMA"];

function axis(more = {}) {
  return {
    gridcolor: css("grid"), zeroline: false, linecolor: css("line"), tickcolor: css("line"), automargin: true,
    tickfont: { size: 11, color: css("soft") }, ...more, title: { text: more.title ?? "", font: { size: 12 }, standoff: 8 },
  };
}

function layout(more = {}) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
    font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: 12, color: css("ink") },
    margin: { l: 8, r: 8, t: 12, b: 8 }, dragmode: false, ...more,
  };
}

function chart(parent, caption, traces, more, label) {
  const plot = el("div", { className: "plot" }), config = { displayModeBar: false, responsive: true, showTips: false };
  parent.append(el("figure", { "aria-label": label ?? caption }, el("figcaption", {}, caption), plot));
  // drawn after its neighbors were added, since they share the width
  queueMicrotask(() => plot.isConnected && Plotly.newPlot(plot, traces, layout({ height: 240, ...more }), config));
}

// Empties a section of the page and gives it a heading and a note.
function section(id, title, ...note) {
  const box = $(id);
  box.replaceChildren(el("h2", {}, title), ...(note.length ? [el("p", { className: "note" }, ...note)] : []));
  return box;
}

function isShown(model) {
  const cell = cellAt(state.run, model);
  return state.variants[cell.variant] && (state.by === "train_length" || cell.setting === state.setting);
}

// The models that pass the filters, brushes and boxes, as 0 or 1 each; null for all.
function selection() {
  const ranges = Object.entries(state.brushes);
  if (!ranges.length && !state.boxed) return null;
  const run = state.run, columns = ranges.map(([name, range]) => [axisValues(run, name), ...range]);
  const chosen = new Uint8Array(run.models);
  for (let i = 0; i < run.models; i++) {
    chosen[i] = isShown(i) && (!state.boxed || state.boxed.has(i)) && columns.every(([x, low, high]) => x[i] >= low && x[i] <= high);
  }
  return chosen;
}
