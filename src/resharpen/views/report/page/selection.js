// What is selected, in numbers: it stays at the bottom of the screen while something is.

const BARS = 48,
  MOST_VALUES = 400;

function median(values) {
  const sorted = values.filter((x) => !Number.isNaN(x)).sort((a, b) => a - b),
    half = sorted.length / 2;
  if (!sorted.length) return NaN;
  return sorted.length % 2 ? sorted[Math.floor(half)] : (sorted[half - 1] + sorted[half]) / 2;
}

// A Gaussian density with Scott's bandwidth at BARS places, the largest 1.
function density(values, low, high) {
  const every = Math.ceil(values.length / MOST_VALUES),
    some = values.toSorted((a, b) => a - b).filter((_, i) => i % every === 0);
  const mean = some.reduce((a, b) => a + b, 0) / some.length,
    spread = Math.sqrt(some.reduce((sum, x) => sum + (x - mean) ** 2, 0) / some.length),
    width = Math.max(spread * some.length ** -0.2, (high - low) / 200);
  const found = Array.from({ length: BARS }, (_, i) => {
    const at = low + ((high - low) * i) / (BARS - 1);
    return some.reduce((sum, x) => sum + Math.exp(-0.5 * ((x - at) / width) ** 2), 0);
  });
  const most = Math.max(...found);
  return found.map((x) => x / most);
}

// The selection above the line, the rest below it, in gray; with few models dots instead of a density.
function smallViolin(chosen, rest, low, high, color) {
  const x = (value) => `${(100 * (value - low)) / (high - low || 1)}%`,
    box = svg("svg", {
      className: "small",
      width: "100%",
      height: 30,
      viewBox: "0 0 100 30",
      preserveAspectRatio: "none",
    });
  const half = (values, side, fill) => {
    if (values.length >= FEW) {
      const points = density(values, low, high).map((w, i) => `${(100 * i) / (BARS - 1)},${15 - side * 13 * w}`);
      return [svg("polygon", { points: `0,15 ${points.join(" ")} 100,15`, fill, opacity: 0.75 })];
    }
    return values.map((value) =>
      svg("line", { x1: x(value), x2: x(value), y1: 15, y2: 15 - side * 8, stroke: fill, "stroke-width": 0.6 }),
    );
  };
  const tick = (values, side) => {
    const at = median(values);
    if (Number.isNaN(at)) return [];
    return [svg("line", { x1: x(at), x2: x(at), y1: 15, y2: 15 - side * 14, stroke: css("ink"), "stroke-width": 0.8 })];
  };
  box.append(...half(chosen, 1, color), ...half(rest, -1, css("bema")), ...tick(chosen, 1), ...tick(rest, -1));
  return box;
}

function drawChosen() {
  const run = state.run,
    chosen = selection(),
    box = $("chosen");
  box.replaceChildren();
  document.body.classList.toggle("selected", chosen !== null);
  if (!chosen) {
    if ($("violins").layout?.selections?.length) Plotly.relayout("violins", { selections: [] });
    return;
  }
  const weights = shownWeights(),
    metric = run.metrics[state.metric],
    at = state.by === "length" ? (hasNew(run.settings[state.setting]) ? "new" : "all") : state.at;
  const groups = run.variants.map(() => ({ in: [], out: [] }));
  let total = 0,
    all = 0;
  for (let i = 0; i < run.models; i++) {
    if (!isShown(i)) continue;
    all++;
    total += chosen[i];
    const value = scoreOf(run, state.metric, weights, i, at);
    if (!Number.isNaN(value)) groups[cellAt(run, i).variant][chosen[i] ? "in" : "out"].push(value);
  }
  const [low, high] = extent(groups.flatMap((group) => [...group.in, ...group.out]));
  const rows = run.variants.flatMap((name, v) => {
    const group = groups[v];
    if (!state.variants[v]) return [];
    return [
      el(
        "tr",
        {},
        cell(name, "short"),
        cell(`${count(group.in.length)} of ${count(group.in.length + group.out.length)}`),
        cell(number(median(group.in), 3)),
        cell(number(median(group.out), 3)),
        el("td", { className: "small" }, smallViolin(group.in, group.out, low, high, variantColor(run, v))),
      ),
    ];
  });
  const heads = ["variant", "selected", "median", "median of the rest"];
  const made = table(heads, rows);
  made
    .querySelector("thead tr")
    .append(
      el(
        "th",
        { scope: "col" },
        `${metric.label}, ${atText(at)}: ${number(low, 2)} to ${number(high, 2)}; above: selected, below: rest`,
      ),
    );
  box.append(
    el(
      "div",
      { className: "head" },
      el("b", {}, `${count(total)} of ${many(all, "model")} selected`),
      ...chips(run),
      el("button", { type: "button", className: "screen", onclick: () => saveCsv(run, chosen) }, "CSV"),
      el("button", { type: "button", className: "screen", onclick: () => change(NOTHING_SELECTED) }, "Clear"),
    ),
    made,
  );
}

// One per condition, with its range; a click removes it.
function chips(run) {
  const chip = (text, remove) =>
    el("button", { type: "button", className: "chip", title: "remove this condition", onclick: remove }, `${text} ×`);
  const range = (name, [low, high]) => `${name} ${number(low, 3)} to ${number(high, 3)}`;
  const found = Object.entries(state.brushes).map(([name, ends]) => {
    const label = name === SCORE ? run.metrics[state.metric].label : words(name);
    return chip(range(label, ends), () => {
      const { [name]: _, ...brushes } = state.brushes;
      change({ brushes });
    });
  });
  if (state.box) {
    const panel = drawnPanels(run)[state.box.panel];
    found.push(
      chip(range(`box in ${panel?.title}: ${run.metrics[state.metric].label}`, state.box.y), () =>
        change({ box: null }),
      ),
    );
  }
  if (state.only) found.push(chip("diverged models", () => change({ only: null })));
  return found;
}

// Scores and hyperparameters of the selected models, one per row.
function csvOf(run, chosen) {
  const quoted = (text) => `"${String(text).replaceAll('"', '""')}"`,
    value = (x) => (Number.isNaN(x) ? "" : String(x));
  const scored = run.metrics.flatMap(({ name }, k) =>
    [0, 1].flatMap((w) => ["all", "new"].map((at) => [`${name}_${w ? "bema" : "train"}_${at}`, k, w, at])),
  );
  const head = [
    "model",
    "setting",
    "variant",
    "draw",
    "diverged_at",
    ...scored.map(([name]) => name),
    ...run.hyperparameters.map(({ name }) => name),
  ];
  const rows = [...chosen.keys()]
    .filter((i) => chosen[i])
    .map((i) => {
      const diverged = part(run, "diverged")[i];
      return [
        quoted(idOf(run, i)),
        quoted(settingAt(run, i).name),
        quoted(run.variants[cellAt(run, i).variant]),
        part(run, "draw")[i],
        diverged < 0 ? "" : diverged,
        ...scored.map(([, k, w, at]) => value(scoreOf(run, k, w, i, at))),
        ...run.hyperparameters.map((_, h) => value(part(run, "hyper", h)[i])),
      ].join(",");
    });
  return [head.map(quoted).join(","), ...rows, ""].join("\r\n");
}

function saveCsv(run, chosen) {
  const address = URL.createObjectURL(new Blob([csvOf(run, chosen)], { type: "text/csv" }));
  el("a", { href: address, download: `${run.name}-selection.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

panels.push({
  needs: ["run", "metric", "by", "at", "setting", "variants", "weights", "theme", ...SELECTION],
  draw: drawChosen,
});
