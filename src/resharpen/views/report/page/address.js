// What is shown is in the address, so that it can be shared: run, model, filters, view and selection.

let runs = [];
const WEIGHT_NAMES = ["train", "bema"];
const sameList = (a, b) => a.length === b.length && a.every((x, i) => x === b[i]);
const named = (names, on) => names.filter((_, i) => on[i]).join(",");

function address() {
  const run = state.run;
  if (!run) return;
  const asked = new URLSearchParams(),
    first = firstView(run);
  if (runs.length > 1) asked.set("run", run.key);
  if (state.pinned !== null) asked.set("model", idOf(run, state.pinned));
  if (state.metric !== first.metric) asked.set("metric", run.metrics[state.metric].name);
  if (state.by !== first.by) asked.set("by", state.by);
  if (state.at !== first.at) asked.set("at", state.at);
  if (state.setting !== first.setting) asked.set("setting", run.settings[state.setting].name);
  if (!state.variants.every(Boolean)) asked.set("variants", named(run.variants, state.variants));
  if (!state.weights.every(Boolean)) asked.set("weights", named(WEIGHT_NAMES, state.weights));
  for (const [name, ends] of Object.entries(state.brushes))
    asked.append("brush", [name, ...ends.map((x) => +x.toPrecision(6))].join(":"));
  if (state.box)
    asked.set("box", [state.box.panel, ...[...state.box.x, ...state.box.y].map((x) => +x.toPrecision(6))].join(":"));
  if (state.only) asked.set("only", state.only);
  if (state.best) asked.set("best", state.best);
  const text = asked.toString().replaceAll("%2F", "/").replaceAll("%3A", ":").replaceAll("%2C", ",");
  const hash = text ? `#${text}` : "";
  if (location.hash !== hash) history.replaceState(null, "", hash || location.pathname + location.search);
}

// The view that an address asks for; what it asks for and is not there is ignored, except for a model.
function viewOf(run, asked) {
  const view = firstView(run),
    id = asked.get("model");
  const index = (names, name, otherwise) => (names.includes(name) ? names.indexOf(name) : otherwise);
  view.metric = index(
    run.metrics.map(({ name }) => name),
    asked.get("metric"),
    view.metric,
  );
  view.setting = index(
    run.settings.map(({ name }) => name),
    asked.get("setting"),
    view.setting,
  );
  if (["train_length", "length"].includes(asked.get("by"))) view.by = asked.get("by");
  const at = asked.get("at");
  if (at in AT) view.at = at;
  else if (run.settings.some(({ lengths }) => lengths.includes(Number(at)))) view.at = Number(at);
  for (const [key, names] of [
    ["variants", run.variants],
    ["weights", WEIGHT_NAMES],
  ]) {
    const on = names.map((name) => asked.get(key)?.split(",").includes(name) ?? true);
    if (on.some(Boolean)) view[key] = on;
  }
  const axes = [...run.hyperparameters.map(({ name }) => name), SCORE];
  for (const text of asked.getAll("brush")) {
    const [name, low, high] = text.split(":");
    if (axes.includes(name) && Number(low) <= Number(high))
      view.brushes = { ...view.brushes, [name]: [Number(low), Number(high)] };
  }
  const box = asked.get("box")?.split(":").map(Number);
  if (box?.length === 5 && box.every(Number.isFinite))
    view.box = { panel: box[0], x: box.slice(1, 3), y: box.slice(3) };
  if (asked.get("only") === "diverged") view.only = "diverged";
  view.best = asked.get("best");
  view.pinned = id === null ? null : (run.at.get(id) ?? null);
  if (view.pinned !== null && view.by === "length" && !asked.has("setting"))
    view.setting = cellAt(run, view.pinned).setting;
  return view;
}

function changes(run, view) {
  if (run !== state.run) return { run, ...view };
  const same = (a, b) => (Array.isArray(a) ? sameList(a, b) : JSON.stringify(a) === JSON.stringify(b));
  return Object.fromEntries(Object.entries(view).filter(([name, value]) => !same(value, state[name])));
}

function follow() {
  const asked = new URLSearchParams(location.hash.slice(1)),
    id = asked.get("model");
  const run =
    runs.find((r) => r.key === asked.get("run")) ??
    (id ? runs.find((r) => r.at.has(id)) : null) ??
    (runs.length === 1 ? runs[0] : null);
  const unknown = [];
  if (id !== null && !(run ?? runs[0]).at.has(id))
    unknown.push(`There is no model '${id}' in ${run?.name ?? "these runs"}.`);
  if (asked.has("run") && runs.every((r) => r.key !== asked.get("run")))
    unknown.push(`There is no run '${asked.get("run")}' in this report.`);
  $("unknown").textContent = unknown.join(" ");
  $("front").hidden = run !== null;
  $("run").hidden = run === null;
  $("theory").hidden = run !== null || !$("theory").children.length;
  for (const link of $("runs").children) {
    if (link.dataset.key === (run?.key ?? "")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (!run) return drawFront(runs);
  const patch = changes(run, viewOf(run, asked));
  if (patch.run) {
    $("name").textContent = run.headline;
    $("lead").replaceChildren(run.task, el("small", {}, lead(run)));
  }
  if (Object.keys(patch).length) change(patch);
}
