// Variants against the baseline by pairs of draws; the expected best of k draws; importance of hyperparameters.

const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8b8f94"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const LENGTHS = { all: "all lengths", new: "new lengths" };
const SHOWN = 6;
let bestAt = null;

function drawCompare() {
  const found = state.run.comparison;
  if (!found) return $("compare").replaceChildren();
  const box = section("compare", `Against ${found.baseline}, pair by pair`,
    `The models of a pair share hyperparameters, initial weights and minibatches, so that only the variant differs. Above zero is better, in ${found.label}; `
    + `a difference within ${found.margin} counts as none.`);
  const heads = found.headlines.map((i) => found.effects[i]);
  if (box.clientWidth > 560) {
    const charts = el("div", { className: "charts" }), where = LENGTHS[heads[0].lengths];
    box.append(charts);
    for (const [name, title] of [["median", "Median gain"], ["best", "Gain of the best tenth"]]) {
      forest(charts, `${title}, ${where}`, heads.map((effect) => ({ what: effect.variant, ...effect[name] })), 0);
    }
  }
  box.append(el("ul", {}, found.sentences.map((text) => el("li", {}, text))));
  const rows = found.effects.map((effect) => el("tr", {}, ...[effect.variant, effect.setting, LENGTHS[effect.lengths]].map((text) => cell(text, "short")),
    ...["median", "best"].flatMap((name) => [cell(number(effect[name].estimate, 3)), cell(interval(effect[name])), el("td", { className: "number" }, verdict(effect[name].verdict))]),
    cell(`${Math.round(100 * effect.wins.estimate)}% of ${effect.pairs.toLocaleString("en")}`)));
  box.append(el("details", {}, el("summary", {}, el("span", { className: "text" }, "Every setting")),
    table(["variant", "setting", "over", "median gain", "95% interval", "", "best tenth", "95% interval", "", "wins"], rows, 3)));
}

function drawBestOf() {
  const found = state.run.comparison;
  if (!found?.bestOf.some((curve) => curve.k.length > 1)) return $("best").replaceChildren();
  const places = [...new Set(found.bestOf.map((curve) => `${curve.setting}, ${LENGTHS[curve.lengths]}`))].map((name) => [name, name]);
  if (!places.some(([name]) => name === bestAt)) bestAt = (places.find(([name]) => name.endsWith(LENGTHS.new)) ?? places[0])[0];
  const box = section("best", "Best of k draws",
    "The expected best of k models with random hyperparameters, a fair comparison at any budget. Bands: at least 95% at each k; they allow for better models than any drawn.");
  if (places.length > 1) box.append(choice("setting", places, bestAt, (name) => { bestAt = name; drawBestOf(); }));
  const curves = found.bestOf.filter((curve) => `${curve.setting}, ${LENGTHS[curve.lengths]}` === bestAt);
  const traces = curves.flatMap((curve) => {
    const v = state.run.variants.indexOf(curve.variant), color = PALETTE[v % PALETTE.length], k = curve.k;
    const low = curve.value.map((x) => x.low), high = curve.value.map((x) => x.high), whole = low.every((x) => x !== null) && high.every((x) => x !== null);
    const band = { x: [...k, ...[...k].reverse()], y: [...high, ...[...low].reverse()], fill: "toself", fillcolor: color, opacity: 0.14, line: { width: 0 }, mode: "lines", hoverinfo: "skip", showlegend: false };
    return [...(whole ? [band] : []), { x: k, y: curve.value.map((x) => x.estimate), mode: "lines+markers", name: plain(curve.variant), marker: { size: 5 },
      line: { color, width: 2, dash: DASHES[v % DASHES.length] }, hovertemplate: `${plain(curve.variant)}, best of %{x}: %{y:.4f}<extra></extra>` }];
  });
  chart(box, "", traces, { height: 340, showlegend: true, legend: { orientation: "h", x: 0, y: 1.12 }, margin: { l: 56, r: 12, t: 20, b: 44 },
    xaxis: axis({ type: "log", title: "k", tickvals: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512], showgrid: false }), yaxis: axis({ title: plain(found.label) }) }, "Expected best of k draws");
}

function drawImportance() {
  const found = state.run.comparison;
  if (!found?.importance.length) return $("importance").replaceChildren();
  const charts = el("div", { className: "charts" });
  section("importance", "Which hyperparameters matter",
    "Pearson divergence of the best tenth from all draws, with 95% intervals: 0 where a hyperparameter does not matter, 4 if the best all lie in one fifth of its range. "
    + "Full bars are significant after Holm's correction.").append(charts);
  const most = Math.max(...found.importance.map((row) => Math.min(row.divergence.high ?? 0, 3 * row.divergence.estimate + 1)));
  for (const variant of new Set(found.importance.map((row) => row.variant))) {
    const rows = found.importance.filter((row) => row.variant === variant).slice(0, SHOWN).reverse();
    const y = rows.map((row) => plain(words(row.hyperparameter)));
    chart(charts, variant, [{ type: "bar", orientation: "h", x: rows.map((row) => row.divergence.estimate), y, width: 0.62,
      marker: { color: rows.map((row) => css(row.p < 0.05 ? "best" : "line")) },
      error_x: { type: "data", symmetric: false, color: css("soft"), thickness: 1.2, width: 3, array: rows.map((row) => row.divergence.high - row.divergence.estimate), arrayminus: rows.map((row) => row.divergence.estimate - row.divergence.low) },
      text: rows.map((row) => `best tenth: ${number(row.low, 2)} to ${number(row.high, 2)}`), textposition: "none", hovertemplate: "%{y}: %{x:.2f}<br>%{text}<extra></extra>" }],
    { height: 60 + 26 * rows.length, margin: { l: 8, r: 12, t: 4, b: 32 }, xaxis: axis({ range: [0, most] }), yaxis: axis({ showgrid: false }) }, `Importance of hyperparameters, ${variant}`);
  }
}

panels.push({ needs: ["run", "theme"], draw: drawCompare }, { needs: ["run", "theme"], draw: drawBestOf }, { needs: ["run", "theme"], draw: drawImportance });
