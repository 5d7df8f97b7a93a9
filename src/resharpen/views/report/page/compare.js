// Gains in every setting; the expected best of k draws; importance of hyperparameters.

const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const SHOWN = 6,
  MANY_BANDS = 4;

function drawCompare() {
  const found = state.run.comparison,
    box = $("compare");
  if (!found || found.effects.length === found.headlines.length) return box.replaceChildren();
  section("compare", `Gains over ${found.baseline} in every setting`, `Above zero is better; ${found.chosen}.`);
  const names = Object.fromEntries(
    state.run.settings.map((setting) => [setting.name, settingLabel(state.run, setting)]),
  );
  const known = found.effects.some((effect) => effect.way !== null),
    places = found.effects.some((effect) => effect.places);
  const rows = found.effects.map((effect) =>
    el(
      "tr",
      {},
      ...[effect.variant, names[effect.setting] ?? "mean of settings", AT[effect.lengths]].map((text) =>
        cell(text, "short"),
      ),
      ...gainCells(effect.median),
      ...gainCells(effect.best),
      cell(`${Math.round(100 * effect.wins.estimate)}% of ${count(effect.pairs)}`),
      ...(known
        ? [
            cell(effect.way === null ? "" : `${Math.round(100 * effect.way)}%`),
            cell(effect.constant ? `${count(effect.constant.beat)} of ${count(effect.constant.models)}` : ""),
          ]
        : []),
      ...(places ? [cell(effect.places ? count(effect.places.total) : "")] : []),
    ),
  );
  const heads = ["variant", "setting", "over", "median gain", "", "gain of the best tenth", "", "pairs won"];
  if (known) heads.push("of the way from a constant to perfect", "models better than a constant");
  if (places) heads.push("scored places");
  box.append(
    el(
      "details",
      {},
      el("summary", {}, el("span", { className: "text" }, many(rows.length, "comparison"))),
      table(heads, rows, 7),
    ),
  );
}

const curveName = (curve) => `${curve.setting}, ${AT[curve.lengths]}`;

function drawBestOf() {
  const run = state.run,
    found = run.comparison;
  if (!found?.bestOf.some((curve) => curve.k.length > 1)) return $("best").replaceChildren();
  const labels = Object.fromEntries(run.settings.map((setting) => [setting.name, settingLabel(run, setting)]));
  const places = new Map(
    found.bestOf.map((curve) => [curveName(curve), `${labels[curve.setting]}, ${AT[curve.lengths]}`]),
  );
  const chosen = places.has(state.best)
    ? state.best
    : ([...places.keys()].find((name) => name.endsWith(AT.new)) ?? [...places.keys()][0]);
  const box = section(
    "best",
    "Best of k draws",
    "The expected best of k models with random hyperparameters: a fair comparison at any budget. Bands: at least 95% at each k; they allow for better models than any drawn.",
  );
  if (places.size > 1) box.append(choice("setting", [...places], chosen, (best) => change({ best })));
  const curves = found.bestOf.filter((curve) => curveName(curve) === chosen),
    hover = curves.length > MANY_BANDS;
  if (hover) box.append(el("p", { className: "note" }, "Point at a line to see its band."));
  const bands = curves.map((curve) => bandOf(run, curve, !hover)),
    traces = curves.map((curve) => curveOf(run, curve));
  const [low, high] = extent([...bands, ...traces].flatMap(({ y }) => y)),
    height = Math.max(340, 60 + 15 * curves.length),
    ends = traces.map(({ y, variant }) => ({ y: y.at(-1), text: variant }));
  const plot = chart(
    box,
    `Expected best ${found.label} of k models`,
    [...bands, ...traces],
    {
      height,
      margin: { l: 56, r: 14 + Math.max(...ends.map(({ text }) => widthOf(text))), t: 16, b: 44 },
      annotations: endLabels(ends, low, high, height - 60),
      xaxis: axis({
        type: "log",
        title: "k, models tried",
        range: [-0.03, Math.log10(Math.max(...curves.map((curve) => curve.k.at(-1)))) + 0.02],
        tickvals: [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
        showgrid: false,
      }),
      yaxis: axis({
        title: `${plain(found.label)} (${run.metrics[run.metric].lowerIsBetter ? "lower" : "higher"} is better)`,
      }),
    },
    () =>
      table(
        ["variant", "k", `expected best ${found.label}`, "95% band"],
        curves.flatMap((curve) =>
          curve.k.map((k, i) => [curve.variant, count(k), number(curve.value[i].estimate), interval(curve.value[i])]),
        ),
      ),
  );
  if (hover) queueMicrotask(() => showBands(plot, curves.length));
}

function bandOf(run, curve, visible) {
  const low = curve.value.map((x) => x.low),
    high = curve.value.map((x) => x.high),
    whole = [...low, ...high].every((x) => x !== null),
    k = curve.k;
  return {
    x: whole ? [...k, ...k.toReversed()] : [],
    y: whole ? [...high, ...low.toReversed()] : [],
    fill: "toself",
    fillcolor: variantColor(run, run.variants.indexOf(curve.variant)),
    opacity: visible ? 0.14 : 0,
    line: { width: 0 },
    mode: "lines",
    hoverinfo: "skip",
  };
}

function curveOf(run, curve) {
  const v = run.variants.indexOf(curve.variant),
    same = run.colors.slice(0, v).filter(({ light }) => light === run.colors[v].light).length;
  return {
    x: curve.k,
    y: curve.value.map((x) => x.estimate),
    variant: curve.variant,
    mode: "lines+markers",
    marker: { size: 5 },
    line: { color: variantColor(run, v), width: 2, dash: DASHES[same % DASHES.length] },
    hovertemplate: `${plain(curve.variant)}, best of %{x}: %{y:.4f}<extra></extra>`,
  };
}

function showBands(plot, many) {
  const bands = Array.from({ length: many }, (_, i) => i);
  plot.on("plotly_hover", ({ points: [{ curveNumber }] }) =>
    Plotly.restyle(plot, { opacity: bands.map((i) => (i === curveNumber - many ? 0.18 : 0)) }, bands),
  );
  plot.on("plotly_unhover", () => Plotly.restyle(plot, { opacity: 0 }, bands));
}

function drawImportance() {
  const run = state.run,
    found = run.comparison;
  if (!found?.importance.length) return $("importance").replaceChildren();
  const charts = el("div", { className: "charts" });
  section(
    "importance",
    "Which hyperparameters matter",
    "Pearson divergence of the best tenth from all draws, with 95% intervals: 0 where a hyperparameter does not matter, 4 if the best all lie in one fifth of its range. " +
      "Bars in color are significant after Holm's correction.",
  ).append(charts);
  const most = Math.max(
    ...found.importance.map((row) => Math.min(row.divergence.high ?? 0, 3 * row.divergence.estimate + 1)),
  );
  for (const variant of new Set(found.importance.map((row) => row.variant))) {
    const all = found.importance.filter((row) => row.variant === variant),
      rows = all.slice(0, SHOWN).reverse(),
      color = variantColor(run, run.variants.indexOf(variant));
    const estimates = rows.map((row) => row.divergence.estimate);
    chart(
      charts,
      variant,
      [
        {
          type: "bar",
          orientation: "h",
          x: estimates,
          y: rows.map((row) => plain(words(row.hyperparameter))),
          width: 0.62,
          marker: { color: rows.map((row) => (row.p < 0.05 ? color : css("line"))) },
          error_x: {
            type: "data",
            symmetric: false,
            color: css("soft"),
            thickness: 1.2,
            width: 3,
            array: rows.map((row, i) => row.divergence.high - estimates[i]),
            arrayminus: rows.map((row, i) => estimates[i] - row.divergence.low),
          },
          text: rows.map((row) => `best tenth: ${number(row.low, 2)} to ${number(row.high, 2)}`),
          textposition: "none",
          hovertemplate: "%{y}: %{x:.2f}<br>%{text}<extra></extra>",
        },
      ],
      {
        height: 60 + 26 * rows.length,
        margin: { l: 8, r: 12, t: 4, b: 32 },
        xaxis: axis({ range: [0, most] }),
        yaxis: axis({ showgrid: false }),
      },
      () =>
        table(
          ["hyperparameter", "divergence", "95% interval", "adjusted p", "best tenth"],
          all.map((row) => [
            words(row.hyperparameter),
            number(row.divergence.estimate, 3),
            interval(row.divergence),
            pText(row.p),
            `${number(row.low, 2)} to ${number(row.high, 2)}`,
          ]),
        ),
      `Importance of hyperparameters, ${variant}`,
    );
  }
}

panels.push(
  { needs: ["run", "theme"], draw: drawCompare },
  { needs: ["run", "theme", "best"], draw: drawBestOf },
  { needs: ["run", "theme"], draw: drawImportance },
);
