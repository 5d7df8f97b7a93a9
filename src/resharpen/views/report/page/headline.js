// The finding: variants against the baseline as a table with a forest plot in it; then the claims.

const GOOD = ["holds", "holds as far as tested", "helps"],
  BAD = ["does not hold", "hurts"];
const kindOf = (text) => (GOOD.includes(text) ? "holds" : BAD.includes(text) ? "fails" : "open");
const SIGN = { holds: "✓", fails: "✗", open: "?" };

// A verdict is told by its sign and words, not by color alone.
function verdict(text) {
  const kind = kindOf(text);
  return el("span", { className: `verdict ${kind}` }, `${text === "no difference" ? "=" : SIGN[kind]} ${text}`);
}

const pText = (p) => (p < 0.001 ? "p < 0.001" : p > 0.999 ? "p = 1" : `p = ${number(p, 2)}`);
const short = (x) => x.toFixed(3).replace("-", "−");
const signed = (x, text = short) => (x > 0 ? `+${text(x)}` : text(x));

function interval({ low, high, bounded = low !== null || high !== null }) {
  if (!bounded) return "no interval: too few models";
  if (low === null) return `up to ${short(high)}`;
  return high === null ? `from ${short(low)}` : `${short(low)} to ${short(high)}`;
}

// The verdict on a gain, with the adjusted p, or with how many more models would decide it.
function judgment(gain) {
  const more = gain.more ? `, +${count(gain.more)} models` : "";
  return [verdict(gain.verdict), el("small", {}, pText(gain.p) + more)];
}

function gainCells(gain) {
  return [
    el("td", {}, el("b", {}, signed(gain.estimate)), el("small", {}, interval(gain))),
    el("td", {}, ...judgment(gain)),
  ];
}

// Where values stand on the common scale of the forest, in percent.
function forestScale(found, effects) {
  const gains = effects.flatMap(({ median, best }) => [median, best]);
  const [low, high] = extent(gains.flatMap(({ low, high, estimate }) => [low, high, estimate]));
  const from = Math.min(low, -2 * found.margin),
    to = Math.max(high, 2 * found.margin),
    pad = 0.04 * (to - from);
  return { from: from - pad, to: to + pad, place: (x) => (100 * (x - from + pad)) / (to - from + 2 * pad) };
}

function forestLine(gain, { from, to, place }, y, color, full) {
  const at = (x) => `${place(x)}%`,
    line = { y1: y, y2: y, stroke: color, "stroke-width": full ? 2 : 1 };
  const open = gain.low === null && gain.high === null;
  return [
    open ? null : svg("line", { x1: at(gain.low ?? from), x2: at(gain.high ?? to), ...line }),
    svg("circle", {
      cx: at(gain.estimate),
      cy: y,
      r: full ? 5 : 3.5,
      fill: full ? color : css("paper"),
      stroke: color,
      "stroke-width": 1.5,
    }),
  ];
}

// The gray band and the line at zero are as high as the cell, so that they go through all rows.
function forestCell(found, scale, effect, color) {
  const strip = (className, from, to) => {
    const box = el("i", { className });
    Object.assign(box.style, { left: `${scale.place(from)}%`, right: `${100 - scale.place(to)}%` });
    return box;
  };
  const marks = effect
    ? [...forestLine(effect.median, scale, 15, color, true), ...forestLine(effect.best, scale, 30, color, false)]
    : [];
  return el(
    "td",
    { className: "forest" },
    strip("band", -found.margin, found.margin),
    strip("zero", 0, 0),
    svg("svg", { width: "100%", height: 44, "aria-hidden": "true" }, marks),
  );
}

function forestAxis(scale) {
  const step =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5].find((s) => (scale.to - scale.from) / s <= 5) ?? 10;
  const ticks = [];
  for (let k = Math.ceil(scale.from / step); k * step <= scale.to; k++) ticks.push(k * step);
  return svg(
    "svg",
    { width: "100%", height: 18, "aria-hidden": "true" },
    ticks.map((x) =>
      svg(
        "text",
        { x: `${scale.place(x)}%`, y: 13, "text-anchor": "middle", fill: css("soft"), "font-size": 11 },
        signed(+x.toFixed(6), (y) => String(y).replace("-", "−")),
      ),
    ),
  );
}

const MANY_ROWS = 6; // with more variants, what they are is told below the table

function variantCell(run, name, more = "") {
  const v = run.variants.indexOf(name);
  const swatch = el("span", { className: "swatch" });
  swatch.style.background = variantColor(run, v);
  const what = run.variants.length > MANY_ROWS ? null : el("small", {}, run.described[v]);
  return el("td", { className: "variant", title: run.described[v] }, swatch, el("b", {}, name), more, what);
}

function variantsInWords(run) {
  const rows = run.variants.map((name, v) => [name, run.described[v]]);
  return el(
    "details",
    {},
    el("summary", {}, el("span", { className: "text" }, "What each variant is")),
    table(["variant", ""], rows, 2),
  );
}

function drawHeadline() {
  const run = state.run,
    found = run.comparison,
    box = $("headline");
  box.replaceChildren();
  if (!found) return;
  const heads = found.headlines.map((i) => found.effects[i]).sort((a, b) => b.median.estimate - a.median.estimate),
    scale = forestScale(found, heads),
    needMore = heads.some(({ median, best }) => median.more || best.more),
    settings = found.effects.filter((e) => e.variant === heads[0].variant && e.lengths === heads[0].lengths).length - 1;
  const rows = heads.map((effect) =>
    el(
      "tr",
      {},
      variantCell(run, effect.variant),
      forestCell(found, scale, effect, variantColor(run, run.variants.indexOf(effect.variant))),
      ...gainCells(effect.median),
      ...gainCells(effect.best),
      el("td", {}, `${Math.round(100 * effect.wins.estimate)}%`, el("small", {}, `of ${count(effect.pairs)}`)),
    ),
  );
  const base = el(
    "tr",
    {},
    variantCell(run, found.baseline, " (baseline)"),
    forestCell(found, scale, null),
    el("td", { colSpan: 5 }),
  );
  const axisRow = el("tr", { className: "axis" }, el("td"), el("td", {}, forestAxis(scale)), el("td", { colSpan: 5 }));
  const titles = ["variant", "", "median gain", "", "gain of the best tenth", "", "pairs won"];
  const head = el(
    "tr",
    {},
    titles.map((text) => el("th", { scope: "col" }, text)),
  );
  head.children[1].append(`worse ← ${found.label} gain → better`);
  const where = `${AT[heads[0].lengths]}${heads[0].lengths === "new" ? " (longer than trained)" : ""}`;
  box.append(
    el(
      "div",
      { className: "scroll" },
      el("table", { className: "gains" }, el("thead", {}, head), el("tbody", {}, rows, base, axisRow)),
    ),
    el(
      "p",
      { className: "note" },
      `Gain: ${found.label} of a variant against ${found.baseline}, on ${where}${heads[0].setting === found.every ? `, mean of ${settings} settings` : ""}, ` +
        "in pairs of models that share hyperparameters, initial weights and minibatches. " +
        `Large dot: median; small ring: best tenth; lines: 95% intervals over draws. Gray: less than ${found.margin}, too little to matter. ` +
        `p is adjusted for ${many(heads[0].median.tests, "comparison")} (Holm).${needMore ? " +n models: about so many more per setting would decide it." : ""}`,
    ),
    ...(run.variants.length > MANY_ROWS ? [variantsInWords(run)] : []),
    ...found.warnings.map((text) => el("p", { className: "note" }, text)),
  );
}

function findingsOf(claim) {
  const rows = claim.findings.map((f) =>
    el(
      "tr",
      {},
      cell(f.what, ""),
      cell(number(f.estimate)),
      cell(interval(f)),
      cell(`${f.says} ${number(f.threshold)}`),
      cell(pText(f.p)),
      el("td", { className: "number" }, verdict(f.verdict)),
    ),
  );
  return table(["finding", "value", "95% interval", "claimed", "adjusted p", "verdict"], rows);
}

const HOW =
  "Best: the 10% quantile over models at their best checkpoint (90% where higher is better), training weights unless BEMA is named. Intervals are over draws.";
const correlation = ({ alike }) =>
  alike === null ? "" : ` Intraclass correlation of the scores of draws that share minibatches: ${number(alike, 2)}.`;

function claimDetails(claim) {
  const body = el("div"),
    summary = el(
      "summary",
      {},
      verdict(claim.verdict),
      el("span", { className: "text" }, `Claim ${claim.number}: ${claim.text}`, el("small", {}, claim.counts)),
    ),
    details = el("details", {}, summary, body);
  details.addEventListener("toggle", () => {
    if (!details.open || body.childElementCount) return;
    body.append(
      claim.findings.length ? findingsOf(claim) : el("p", { className: "note" }, "This run has nothing to test it on."),
    );
    body.append(el("p", { className: "note" }, HOW + correlation(state.run)));
    if (claim.lacks.length)
      body.append(el("p", { className: "note" }, `Only partly tested; missing: ${claim.lacks.join(", ")}.`));
  });
  return details;
}

function drawClaims() {
  const run = state.run;
  if (!run.claims.length) return $("claims").replaceChildren();
  section("claims", "Claims").append(
    ...run.claims.map(claimDetails),
    el(
      "p",
      { className: "note" },
      "s: training length. Claims 1 to 7 are the paper's, the others are ours. Open a claim to see its findings.",
    ),
  );
}

panels.push({ needs: ["run", "theme"], draw: drawHeadline }, { needs: ["run", "theme"], draw: drawClaims });
