// The page: filters, keys, light and dark, paper; and the startup.

const VIEW = ["run", "metric", "by", "at", "setting", "variants", "weights"];

const toggles = (label, names, on, flip, looks = []) =>
  el(
    "fieldset",
    { ariaLabel: label },
    names.map((name, i) => {
      const button = el("button", {
        type: "button",
        className: "toggle",
        ariaPressed: String(on[i]),
        onclick: () => flip(i),
      });
      const swatch = el("span", { className: "swatch" });
      if (looks[i]) swatch.style.background = looks[i];
      button.append(...(looks[i] ? [swatch] : []), name);
      return button;
    }),
  );

// At least one stays on.
const flipped = (on, i) => {
  const next = on.map((x, k) => (k === i ? !x : x));
  return next.some(Boolean) ? next : on;
};

function drawFilters() {
  const run = state.run,
    form = $("filters"),
    focused = document.activeElement?.textContent;
  form.replaceChildren(
    toggles(
      "variants",
      run.variants,
      state.variants,
      (i) => change({ variants: flipped(state.variants, i), box: null }),
      run.variants.map((_, v) => variantColor(run, v)),
    ),
    toggles("weights", WEIGHTS, state.weights, (i) => change({ weights: flipped(state.weights, i) }), [
      null,
      css("bema"),
    ]),
  );
  const add = (...of) => form.append(choice(...of));
  if (run.metrics.length > 1) {
    const options = run.metrics.map((m, i) => [i, m.label]);
    add("score", options, state.metric, (metric) => change({ metric, ...NOTHING_SELECTED }));
  }
  if (run.settings.length > 1) {
    const options = [
      ["train_length", "setting"],
      ["length", "input length"],
    ];
    add("by", options, state.by, (by) => change({ by, box: null }));
  }
  if (state.by === "train_length") {
    const lengths = [...new Set(run.settings.flatMap((setting) => setting.lengths))].sort((a, b) => a - b),
      groups = run.settings.some(hasNew) ? ["new", "all"] : ["all"];
    const options = [...groups, ...lengths].map((at) => [at, atText(at)]);
    add("at", options, state.at, (at) => change({ at, box: null }));
  } else if (run.settings.length > 1) {
    const options = run.settings.map((s, i) => [i, settingLabel(run, s)]);
    add("setting", options, state.setting, (setting) => change({ setting, box: null }));
  }
  if (focused) [...form.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
}

// Arrow keys move from violin to violin and, by value, from model to model.
let cursor = null;

function step(key) {
  const places = shown
    .flatMap((panel) => panel.violins.flatMap((_, violin) => panel.dots.map((dots) => ({ panel, dots, violin }))))
    .map((place) => ({
      ...place,
      order: place.dots.violin
        .flatMap((v, i) => (v === place.violin ? [i] : []))
        .sort((a, b) => place.dots.y[a] - place.dots.y[b]),
    }))
    .filter((place) => place.order.length);
  if (!places.length) return;
  if (!cursor) cursor = { place: 0, rank: -1 };
  const turn = { ArrowRight: 1, ArrowLeft: -1 }[key] ?? 0,
    up = { ArrowUp: 1, ArrowDown: -1 }[key] ?? 0;
  if (cursor.rank >= 0) cursor.place = (cursor.place + turn + places.length) % places.length;
  const { order, ...at } = places[Math.min(cursor.place, places.length - 1)];
  cursor.rank = Math.max(0, Math.min(order.length - 1, cursor.rank + (cursor.rank < 0 ? 1 : up)));
  cursor.model = at.dots.models[order[cursor.rank]];
  point({ ...at, index: order[cursor.rank] });
}

function listenToKeys() {
  $("violins").addEventListener("keydown", (event) => {
    if (event.key.startsWith("Arrow")) {
      event.preventDefault();
      step(event.key);
    }
    if (event.key === "Enter" && cursor) pin(cursor.model);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    hideTip();
    if (state.pinned !== null) change({ pinned: null });
    else if (selecting()) change(NOTHING_SELECTED);
  });
  $("violins").addEventListener("blur", hideTip);
  panels.push({
    needs: VIEW,
    draw: () => {
      cursor = null;
    },
  });
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").setAttribute("aria-label", theme === "dark" ? "switch to light" : "switch to dark");
  if (state.run) change({ theme });
  else {
    state.theme = theme;
    if (runs.length > 1) drawFront(runs);
  }
}

function redraw() {
  if (state.run) {
    drawViolins();
    drawParallel();
  }
}

// For printing, charts are redrawn for the width of a sheet and on a light background.
let onScreen = null;

function toPaper(on) {
  if (on) onScreen = state.theme;
  document.body.classList.toggle("paper", on);
  if (onScreen === "dark") setTheme(on ? "light" : "dark");
  else redraw();
  for (const plot of document.querySelectorAll("figure .js-plotly-plot, .card .js-plotly-plot"))
    Plotly.relayout(plot, { width: plot.clientWidth });
}

async function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  $("theme").onclick = () => setTheme(state.theme === "dark" ? "light" : "dark");
  const library = new TextDecoder().decode(await unpack(document.querySelector(".library").textContent));
  document.head.append(el("script", { textContent: library }));
  runs = await Promise.all([...document.querySelectorAll(".run")].map((block) => readRun(block.textContent)));
  runs.forEach((run, i) => {
    run.key = runs.slice(0, i).some((other) => other.name === run.name) ? `${run.name}-${i + 1}` : run.name;
  });
  if (runs.length > 1)
    $("runs").append(
      ...[["", "All runs"], ...runs.map((run) => [run.key, run.key])].map(([key, text]) =>
        el("a", { href: key ? `#run=${encodeURIComponent(key)}` : "#", "data-key": key }, text),
      ),
    );
  panels.unshift({ needs: [...VIEW, "theme"], draw: drawFilters });
  panels.push({ needs: [...VIEW, ...SELECTION, "pinned", "best"], draw: address });
  listenToKeys();
  addEventListener("hashchange", follow);
  let waiting;
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) {
      width = innerWidth;
      clearTimeout(waiting);
      waiting = setTimeout(redraw, 150);
    }
  });
  addEventListener("beforeprint", () => toPaper(true));
  addEventListener("afterprint", () => toPaper(false));
  follow();
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  $("lead").textContent = `This browser cannot draw the report (${error}): it needs one of 2023 or later.`;
  throw error;
});
