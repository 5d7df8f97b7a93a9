// Claims and findings, diverged models, provenance; and the front page of several runs.

const KIND = { "holds": "holds", "holds as far as tested": "holds", "does not hold": "fails", "helps": "holds", "hurts": "fails" };
const verdict = (text) => el("span", { className: `verdict ${KIND[text] ?? "open"}` }, text);
const cell = (text, className = "number") => el("td", { className }, text);
const interval = ({ low, high }) => `${low === null ? "−∞" : number(low)} .. ${high === null ? "∞" : number(high)}`;

// The first `texts` columns are texts, the others numbers.
function table(heads, rows, texts = 1) {
  const head = el("tr", {}, heads.map((text, i) => el("th", { scope: "col", className: i < texts ? "" : "number" }, text)));
  return el("div", { className: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, rows)));
}

// Estimates with their intervals; an open end runs to the edge.
function forest(parent, caption, rows, zero) {
  const known = rows.flatMap((row) => [row.low, row.high, row.estimate, row.threshold ?? zero]).filter((x) => x !== null);
  const least = Math.min(...known), most = Math.max(...known), pad = Math.max(0.08 * (most - least), 1e-4), y = rows.map((_, i) => -i);
  const colors = rows.map((row) => css(KIND[row.verdict] ?? "open"));
  chart(parent, caption, [{
    mode: "markers", x: rows.map((row) => row.estimate), y, marker: { size: 8, color: colors },
    text: rows.map((row) => plain(row.what)), hovertemplate: "%{text}: %{x:.4f}<extra></extra>",
    error_x: { type: "data", symmetric: false, color: css("soft"), thickness: 1.4, width: 3,
      array: rows.map((row) => (row.high ?? most + pad) - row.estimate), arrayminus: rows.map((row) => row.estimate - (row.low ?? least - pad)) },
  }, {
    mode: "markers", x: rows.map((row) => row.threshold ?? zero), y, hoverinfo: "skip", marker: { symbol: "line-ns", size: 12, line: { width: 1.5, color: css("ink") } },
  }], { height: 60 + 24 * rows.length, margin: { l: 8, r: 12, t: 8, b: 32 }, xaxis: axis({ range: [least - pad, most + pad] }),
    yaxis: axis({ tickvals: y, ticktext: rows.map((row) => plain(row.what)), range: [0.7 - rows.length, 0.7], showgrid: false }) });
}

function claimDetails(claim) {
  const body = el("div"), row = (f) => el("tr", {}, cell(f.what, ""), cell(number(f.estimate)), cell(interval(f)),
    cell(`${f.says} ${number(f.threshold)}`), cell(number(f.p, 2)), el("td", { className: "number" }, verdict(f.verdict)));
  const details = el("details", {}, el("summary", {}, el("span", { className: "text" }, `${claim.number}. ${claim.text}`), verdict(claim.verdict)), body);
  details.addEventListener("toggle", () => {
    if (!details.open || body.childElementCount) return;
    if (!claim.findings.length) { body.append(el("p", { className: "note" }, "This run has nothing to test it on.")); return; }
    if (body.clientWidth > 560) forest(body, "", claim.findings, 0);
    body.append(table(["finding", "value", "95% interval", "claimed", "p (Holm)", "verdict"], claim.findings.map(row)));
    if (claim.lacks.length) body.append(el("p", { className: "note" }, `Only partly tested; missing: ${claim.lacks.join(", ")}.`));
  });
  return details;
}

function drawVerdicts() {
  const run = state.run;
  if (!run.claims.length) return $("verdicts").replaceChildren();
  section("verdicts", "Claims").append(...run.claims.map(claimDetails), el("p", { className: "note" },
    "Claims 1 to 7 are the paper's, the others ours. Best: the 10% quantile over models at their best checkpoint (90% where higher is better), training weights unless BEMA is named. Intervals are over draws; "
    + "colored dots are estimates, vertical ticks the claimed bounds."
    + (run.alike === null ? "" : ` Intraclass correlation of the scores of draws that share minibatches: ${number(run.alike, 2)}.`)));
}

function drawDiverged() {
  const run = state.run, at = part(run, "diverged"), models = [...at.keys()].filter((i) => at[i] >= 0), title = "Diverged models";
  if (!models.length) return section("diverged", title, `None of ${many(run.models, "model")}.`);
  const without = models.filter((i) => Number.isNaN(valueOf(run, run.metric, 0, i))).length;
  const select = () => { change({ brushes: {}, boxed: new Set(models) }); $("look").scrollIntoView(); };
  const box = section("diverged", title, `${models.length.toLocaleString("en")} of ${many(run.models, "model")}; ${without.toLocaleString("en")} before their first checkpoint: `
    + "they have no score, are left out of densities and count as worst in statistics. ", el("button", { type: "button", className: "screen", onclick: select }, "Select them"));
  const rows = run.settings.map((setting, s) => el("tr", {}, cell(setting.name, ""), run.variants.map((_, v) => {
    const found = run.cells.find((c) => c.setting === s && c.variant === v);
    return cell(found ? `${found.diverged} of ${found.count.toLocaleString("en")}` : "");
  })));
  box.append(table(["setting", ...run.variants], rows));
}

function drawAbout() {
  const { about, insideSaid, made } = state.run, box = section("about", "Provenance", "To repeat it:");
  box.append(el("pre", {}, about.command));
  if (about.continue) box.append(el("p", { className: "note" }, "It is not finished; continue with:"), el("pre", {}, about.continue));
  if (about.cut?.length) {
    box.append(el("h3", {}, "Differences from the full protocol"), table(["", "here", "in full"], about.cut.map((row) => el("tr", {}, cell(row.what, ""), cell(row.here), cell(row.paper)))));
  } else if (about.cut) box.append(el("p", {}, "This is the full protocol."));
  box.append(el("dl", { className: "facts" }, Object.entries(about.facts).flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])));
  if (insideSaid) box.append(el("p", { className: "note" }, insideSaid));
  box.append(el("details", {}, el("summary", {}, el("span", { className: "text" }, "The whole spec")), el("pre", {}, JSON.stringify(about.spec, null, 1))));
  $("footer").textContent = `Drawn with ${made}.`;
}

function drawFront(runs) {
  const plots = runs.map((run) => el("div", { className: "plot", "aria-label": `Violins of ${run.name}` }));
  const cards = runs.map((run, i) => {
    const claims = run.claims.map((claim) => el("li", {}, el("span", {}, `${claim.number}. ${claim.text}`), verdict(claim.verdict)));
    return el("article", { className: "card" }, el("h2", {}, el("a", { href: `#run=${encodeURIComponent(run.key)}` }, run.name)), el("p", { className: "note" }, lead(run)),
      plots[i], claims.length ? el("ul", {}, claims) : el("p", { className: "note" }, "No claim is about this run."));
  });
  $("front").replaceChildren(el("div", { className: "cards" }, cards));
  runs.forEach((run, i) => {
    open(run);
    const picture = violinPicture(run, plots[i].clientWidth, false);
    Plotly.newPlot(plots[i], picture.traces, { ...picture.layout, dragmode: false }, { staticPlot: true, responsive: true });
  });
  state.run = null;
}

function lead(run) {
  const titles = [...new Set(run.settings.map((setting) => setting.title))], finished = run.models === run.asked ? "" : ` of ${run.asked.toLocaleString("en")} so far`;
  const named = titles.length < 4 ? titles.join(", ") : `${titles.length} tasks, ${titles[0]} to ${titles.at(-1)}`;
  return `${named}. ${many(run.models, "model")}${finished}, ${run.about.facts.steps.split(" of ")[0]} steps, ${run.about.time}.`;
}

panels.push({ needs: ["run", "theme"], draw: drawVerdicts }, { needs: ["run"], draw: drawDiverged }, { needs: ["run"], draw: drawAbout });
