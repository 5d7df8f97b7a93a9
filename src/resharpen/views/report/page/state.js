// The state of the page, the panels that show it, and helpers that all panels use.

const state = {
  run: null,
  metric: 0,
  by: "length",
  at: "new",
  setting: 0,
  variants: [],
  weights: [true, true],
  pinned: null,
  brushes: {}, // name of an axis -> [low, high]
  box: null, // a box over a panel of violins: {panel, x: [from, to], y: [from, to]}
  only: null, // "diverged": these models only
  best: null, // which setting and lengths the curves of the best of k show
  theme: "light",
};
const panels = []; // {needs: names in the state that it shows, draw}
const $ = (id) => document.getElementById(id);
const SELECTION = ["brushes", "box", "only"];
const NOTHING_SELECTED = { brushes: {}, box: null, only: null };

function change(patch) {
  Object.assign(state, patch);
  const changed = Object.keys(patch);
  for (const { needs, draw } of panels) if (needs.some((name) => changed.includes(name))) draw(changed);
}

// A run opens with its own figure, on new lengths where it has any.
function firstView(run) {
  const several = new Set(run.settings.map((setting) => setting.trainLength)).size > 1;
  return {
    metric: 0,
    by: run.by === "train_length" && several ? "train_length" : "length",
    at: run.settings.some(hasNew) ? "new" : "all",
    setting: 0,
    variants: run.variants.map(() => true),
    weights: [true, true],
    pinned: null,
    best: null,
    ...NOTHING_SELECTED,
  };
}

// Everything is added to the page as text or property, never as markup.
function el(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

function svg(tag, properties = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  return filled(element, {}, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null));
  return element;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const count = (n) => n.toLocaleString("en");
const many = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;
const words = (name) => name.replaceAll("_", " ");
const WEIGHTS = ["training weights", "BEMA"];
const AT = { all: "all lengths", new: "new lengths" };
const atText = (at) => AT[at] ?? `length ${count(at)}`;
const shownWeights = () => (state.weights[0] ? 0 : 1);

function number(x, digits = 4) {
  if (x === null || Number.isNaN(x)) return "none";
  if (x !== 0 && Math.abs(x) < 0.001) return x.toExponential(1).replace("-0", "-");
  return Math.abs(x) >= 1e5 ? x.toExponential(1) : String(+x.toPrecision(digits));
}

function settingLabel(run, setting) {
  const one = new Set(run.settings.map(({ title }) => title)).size === 1;
  return one ? setting.label : `${setting.title}, ${setting.label}`;
}

function isShown(model) {
  const cell = cellAt(state.run, model);
  return state.variants[cell.variant] && (state.by === "train_length" || cell.setting === state.setting);
}

const selecting = () => Object.keys(state.brushes).length > 0 || state.box !== null || state.only !== null;

// The models that pass the filters, brushes and boxes, as 0 or 1 each; null for all.
function selection() {
  if (!selecting()) return null;
  const run = state.run,
    chosen = new Uint8Array(run.models),
    columns = Object.entries(state.brushes).map(([name, range]) => [axisValues(run, name), ...range]),
    boxed = state.box && inBox(run, state.box),
    diverged = part(run, "diverged");
  for (let i = 0; i < run.models; i++) {
    chosen[i] =
      isShown(i) &&
      (!boxed || boxed.has(i)) &&
      (state.only === null || diverged[i] >= 0) &&
      columns.every(([x, low, high]) => x[i] >= low && x[i] <= high);
  }
  return chosen;
}
