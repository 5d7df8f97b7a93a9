// The page: filters, keys, addresses, light and dark; and the startup.

let runs = [];

// A run opens with its own figure.
function open(run) {
  const several = new Set(run.settings.map((setting) => setting.trainLength)).size > 1;
  Object.assign(state, { run, metric: 0, by: run.by === "train_length" && several ? "train_length" : "length", length: null,
    setting: 0, variants: run.variants.map(() => true), weights: [true, true], pinned: null, brushes: {}, boxed: null });
}

function choice(label, options, value, pick) {
  const select = el("select", { ariaLabel: label, onchange: () => pick(options[select.selectedIndex][0]) },
    options.map(([key, text]) => el("option", { selected: key === value }, text)));
  return el("label", {}, label, select);
}

const toggles = (label, names, on, flip, classes = []) => el("fieldset", { ariaLabel: label }, names.map((name, i) =>
  el("button", { type: "button", className: `toggle ${classes[i] ?? ""}`, ariaPressed: String(on[i]), onclick: () => flip(i) }, name)));

// At least one stays on.
const flipped = (on, i) => { const next = on.map((x, k) => (k === i ? !x : x)); return next.some(Boolean) ? next : on; };

function drawFilters() {
  const run = state.run, form = $("filters"), focused = document.activeElement?.textContent;
  form.replaceChildren(
    toggles("variants", run.variants, state.variants, (i) => change({ variants: flipped(state.variants, i), boxed: null })),
    toggles("weights", WEIGHTS, state.weights, (i) => change({ weights: flipped(state.weights, i) }), ["train", "bema"]));
  if (run.metrics.length > 1) form.append(choice("score", run.metrics.map((m, i) => [i, m.label]), state.metric, (metric) => change({ metric, brushes: {}, boxed: null })));
  const lengths = [...new Set(run.settings.flatMap((setting) => setting.lengths))].sort((a, b) => a - b);
  if (run.settings.length > 1) form.append(choice("by", [["train_length", "setting"], ["length", "input length"]], state.by, (by) => change({ by, boxed: null })));
  if (state.by === "train_length") form.append(choice("at", [[null, "all lengths"], ...lengths.map((n) => [n, `length ${n.toLocaleString("en")}`])], state.length, (length) => change({ length, boxed: null })));
  else if (run.settings.length > 1) form.append(choice("setting", run.settings.map((s, i) => [i, s.name]), state.setting, (setting) => change({ setting, boxed: null })));
  if (focused) [...form.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
}

// Arrow keys move from violin to violin and, by value, from model to model.
let cursor = null;

function step(key) {
  const places = shown.flatMap((panel) => panel.violins.flatMap((_, violin) => panel.dots.map((dots) => ({ panel, dots, violin }))))
    .map((place) => ({ ...place, order: place.dots.violin.flatMap((v, i) => (v === place.violin ? [i] : [])).sort((a, b) => place.dots.y[a] - place.dots.y[b]) }))
    .filter((place) => place.order.length);
  if (!places.length) return;
  if (!cursor) cursor = { place: 0, rank: -1 };
  const turn = { ArrowRight: 1, ArrowLeft: -1 }[key] ?? 0, up = { ArrowUp: 1, ArrowDown: -1 }[key] ?? 0;
  if (cursor.rank >= 0) cursor.place = (cursor.place + turn + places.length) % places.length;
  const { order, ...at } = places[Math.min(cursor.place, places.length - 1)];
  cursor.rank = Math.max(0, Math.min(order.length - 1, cursor.rank + (cursor.rank < 0 ? 1 : up)));
  cursor.model = at.dots.models[order[cursor.rank]];
  point({ ...at, index: order[cursor.rank] });
}

function listenToKeys() {
  $("violins").addEventListener("keydown", (event) => {
    if (event.key.startsWith("Arrow")) { event.preventDefault(); step(event.key); }
    if (event.key === "Enter" && cursor) change({ pinned: cursor.model });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    hideTip();
    if (state.pinned !== null) change({ pinned: null });
    else change({ brushes: {}, boxed: null });
  });
  $("violins").addEventListener("blur", hideTip);
  panels.push({ needs: ["run", "metric", "by", "length", "setting", "variants", "weights"], draw: () => { cursor = null; } });
}

// #run=NAME and #model=ID name what is open, so that the address can be shared.
function follow() {
  const asked = new URLSearchParams(location.hash.slice(1)), id = asked.get("model");
  const run = runs.find((r) => r.key === asked.get("run")) ?? (id ? runs.find((r) => r.at.has(id)) : null) ?? (runs.length === 1 ? runs[0] : null);
  $("front").hidden = run !== null; $("run").hidden = run === null;
  $("theory").hidden = run !== null || !$("theory").children.length;
  for (const link of $("runs").children) link.toggleAttribute("aria-current", link.dataset.key === (run?.key ?? ""));
  if (!run) {
    $("name").textContent = "Resharpen"; $("lead").textContent = `${many(runs.length, "run")}. Open one to look at its models.`; $("footer").textContent = `Drawn with ${runs[0].made}.`;
    drawFront(runs);
    return;
  }
  const pinned = id === null ? null : run.at.get(id) ?? null;
  if (run !== state.run) {
    open(run);
    if (pinned !== null && state.by === "length") state.setting = cellAt(run, pinned).setting;
    $("name").textContent = run.name; $("lead").textContent = lead(run);
    change({ run, pinned });
  } else if (pinned !== state.pinned) change({ pinned });
  if (pinned !== null) $("model").scrollIntoView({ block: "nearest" });
}

function address() {
  if (!state.run) return;
  const asked = new URLSearchParams();
  if (runs.length > 1) asked.set("run", state.run.key);
  if (state.pinned !== null) asked.set("model", idOf(state.run, state.pinned));
  const hash = asked.size ? `#${asked.toString().replaceAll("%2F", "/")}` : "";
  if (location.hash !== hash) history.replaceState(null, "", hash || location.pathname + location.search);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").setAttribute("aria-label", theme === "dark" ? "switch to light" : "switch to dark");
  if (state.run) change({ theme }); else { state.theme = theme; if (runs.length > 1) drawFront(runs); }
}

function redraw() { if (state.run) { drawViolins(); drawParallel(); } }

// For printing, charts are redrawn for the width of a sheet and on a light background.
let onScreen = null;

function toPaper(on) {
  if (on) onScreen = state.theme;
  document.body.classList.toggle("paper", on);
  if (onScreen === "dark") setTheme(on ? "light" : "dark"); else redraw();
  for (const plot of document.querySelectorAll("figure .js-plotly-plot, .card .js-plotly-plot")) Plotly.relayout(plot, { width: plot.clientWidth });
}

async function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  $("theme").onclick = () => setTheme(state.theme === "dark" ? "light" : "dark");
  const library = new TextDecoder().decode(await unpack(document.querySelector(".library").textContent));
  document.head.append(el("script", { textContent: library }));
  runs = await Promise.all([...document.querySelectorAll(".run")].map((block) => readRun(block.textContent)));
  runs.forEach((run, i) => { run.key = runs.slice(0, i).some((other) => other.name === run.name) ? `${run.name}-${i + 1}` : run.name; });
  if (runs.length > 1) $("runs").append(...[["", "All runs"], ...runs.map((run) => [run.key, run.key])].map(([key, text]) =>
    el("a", { href: key ? `#run=${encodeURIComponent(key)}` : "#", "data-key": key }, text)));
  panels.unshift({ needs: ["run", "metric", "by", "length", "setting", "variants", "weights"], draw: drawFilters });
  panels.push({ needs: ["run", "pinned"], draw: address });
  listenToKeys();
  addEventListener("hashchange", follow);
  let waiting;
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; clearTimeout(waiting); waiting = setTimeout(redraw, 150); } });
  addEventListener("beforeprint", () => toPaper(true));
  addEventListener("afterprint", () => toPaper(false));
  follow();
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  $("lead").textContent = `This browser cannot draw the report (${error}): it needs one of 2023 or later.`;
  throw error;
});
