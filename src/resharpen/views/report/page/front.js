// The front page of several runs: claims by run, then a card per run with its finding and its figure.

const SHORT = { "holds as far as tested": "holds so far", "undecided at this scale": "open", "does not hold": "fails" };

// Rows are claims, columns the runs that test any.
function claimsMatrix(runs) {
  const testing = runs.filter((run) => run.claims.length),
    texts = new Map(
      testing.flatMap((run) => run.claims.map(({ number: n, text }) => [`${n} ${text}`, `${n}. ${text}`])),
    );
  const rows = [...texts]
    .sort(([a], [b]) => Number.parseInt(a, 10) - Number.parseInt(b, 10))
    .map(([key, text]) =>
      el(
        "tr",
        {},
        cell(text, ""),
        testing.map((run) => {
          const claim = run.claims.find((each) => `${each.number} ${each.text}` === key);
          if (!claim) return el("td");
          const held = claim.findings.filter((finding) => finding.verdict === "holds").length;
          const short = verdict(claim.verdict);
          short.textContent = `${SIGN[kindOf(claim.verdict)]} ${SHORT[claim.verdict] ?? claim.verdict}`;
          return el(
            "td",
            { title: claim.counts },
            short,
            el("small", {}, `${held} of ${claim.findings.length} findings`),
          );
        }),
      ),
    );
  const link = (run) => el("a", { href: `#run=${encodeURIComponent(run.key)}` }, run.key);
  const head = el(
    "tr",
    {},
    el("th", { scope: "col" }, "claim"),
    testing.map((run) => el("th", { scope: "col" }, link(run))),
  );
  return el(
    "div",
    { className: "scroll" },
    el("table", { className: "matrix" }, el("thead", {}, head), el("tbody", {}, rows)),
  );
}

function runCard(run, plot) {
  const metric = run.metrics[0],
    where = state.by === "length" ? "by input length" : `on ${atText(state.at)}`;
  return el(
    "article",
    { className: "card" },
    el("h2", {}, el("a", { href: `#run=${encodeURIComponent(run.key)}` }, run.headline)),
    el("p", { className: "note" }, lead(run)),
    el("p", { className: "note" }, `${metric.label} ${where}; ${metric.lowerIsBetter ? "lower" : "higher"} is better.`),
    plot,
  );
}

function drawFront(runs) {
  const verdicts = runs.flatMap((run) => run.claims.map((claim) => kindOf(claim.verdict))),
    held = verdicts.filter((kind) => kind === "holds").length;
  $("name").textContent = verdicts.length
    ? `${many(runs.length, "run")}: ${held} of ${many(verdicts.length, "tested claim")} hold`
    : many(runs.length, "run");
  $("lead").textContent = "Open a run to look at its models.";
  $("footer").textContent = `Drawn with ${runs[0].made}.`;
  const plots = runs.map((run) => el("div", { className: "plot", "aria-label": `Violins of ${run.name}` }));
  const cards = runs.map((run, i) => {
    Object.assign(state, { run, ...firstView(run) });
    return runCard(run, plots[i]);
  });
  $("front").replaceChildren(
    ...(verdicts.length ? [el("h2", {}, "Claims by run"), claimsMatrix(runs)] : []),
    el("div", { className: "cards" }, cards),
  );
  runs.forEach((run, i) => {
    Object.assign(state, { run, ...firstView(run) });
    const picture = violinPicture(run, plots[i].clientWidth, false);
    Plotly.newPlot(
      plots[i],
      picture.traces,
      { ...picture.layout, dragmode: false },
      { staticPlot: true, responsive: true },
    );
  });
  state.run = null;
}
