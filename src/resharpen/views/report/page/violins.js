// Split violins: the left half training weights in the color of the variant, the right half BEMA in gray.

const WIDTH = 0.43,
  MANY_DOTS = 10000,
  MANY_VIOLINS = 12,
  LONG_TICK = 0.4,
  SHORT_TICK = 0.22,
  FEW = 30, // models per violin: with fewer there is no density
  MANY = 150, // with more there are only some dots
  SOME = 60;
const WEBGL = document.createElement("canvas").getContext("webgl") !== null;
let shown = []; // the panels as they are drawn

const cellIndex = (run, setting, variant) =>
  run.cells.findIndex((cell) => cell.setting === setting && cell.variant === variant);

// One panel per variant (and task), with one violin per training length, or per length.
function violinPanels(run) {
  const variants = run.variants.map((_, i) => i).filter((i) => state.variants[i]);
  const violin = (i, variant, x, at) => ({
    x,
    at,
    setting: i,
    column: columnOf(run.settings[i], at),
    cell: cellIndex(run, i, variant),
  });
  if (state.by === "length") {
    const setting = run.settings[state.setting];
    return variants.map((variant) => ({
      variant,
      setting: state.setting,
      title: run.variants[variant],
      labels: setting.lengths.map(count),
      violins: setting.lengths.map((length, x) => violin(state.setting, variant, x, length)),
    }));
  }
  const titles = [...new Set(run.settings.map((setting) => setting.title))],
    known = run.settings.map((_, i) => i).filter((i) => columnOf(run.settings[i], state.at) >= 0);
  // tasks with one setting each share a panel
  const groups =
    titles.length === run.settings.length
      ? [["", known]]
      : titles.map((title) => [title, known.filter((i) => run.settings[i].title === title)]);
  return groups
    .filter(([, settings]) => settings.length)
    .flatMap(([title, settings]) =>
      variants.map((variant) => ({
        variant,
        setting: settings[0],
        title: groups.length > 1 ? `${run.variants[variant]}, ${title}` : run.variants[variant],
        labels: settings.map((i) =>
          title || titles.length === 1 ? String(run.settings[i].trainLength) : run.settings[i].title,
        ),
        violins: settings.map((i, x) => violin(i, variant, x, state.at)),
      })),
    );
}

// Dots are spread by a fixed rule rather than at random, so that a run always gives the same picture.
const placeOfDot = (run, v, weights, model) =>
  v.x + (weights ? 1 : -1) * (0.06 + 0.24 * (((model - run.cells[v.cell].start) * 0.618034) % 1));

// Of many models an even sample by value, with the extremes; while some are selected, of these and of the others.
function sampled(models, values, chosen) {
  if (models.length <= MANY) return models;
  const some = (of, most) => {
    const sorted = of.toSorted((a, b) => values[a] - values[b]),
      last = sorted.length - 1;
    const picked = Array.from(
      { length: Math.min(most, sorted.length) },
      (_, i) => sorted[Math.round((i * last) / Math.max(1, Math.min(most, sorted.length) - 1))],
    );
    return [...new Set(picked)];
  };
  if (!chosen) return some(models, SOME + 2);
  return [
    ...some(
      models.filter((i) => chosen[i]),
      SOME + 2,
    ),
    ...some(
      models.filter((i) => !chosen[i]),
      SOME / 2,
    ),
  ];
}

function dotsOf(run, panel, weights, every, chosen) {
  const dots = { x: [], y: [], models: [], violin: [] };
  panel.violins.forEach((v, place) => {
    if (v.cell < 0 || v.column < 0) return;
    const { start, count: n } = run.cells[v.cell],
      values = {};
    for (let i = start; i < start + n; i++) {
      const value = scoreOf(run, state.metric, weights, i, v.at);
      if (!Number.isNaN(value)) values[i] = value;
    }
    const models = Object.keys(values).map(Number);
    sampled(models, values, chosen).forEach((model, rank) => {
      if (rank % every) return;
      dots.x.push(placeOfDot(run, v, weights, model));
      dots.y.push(values[model]);
      dots.models.push(model);
      dots.violin.push(place);
    });
  });
  return dots;
}

// The outlines of all halves in one trace, with gaps between them, and their ticks in another.
function outlines(run, panel, weights) {
  const body = { x: [], y: [] },
    ticks = { x: [], y: [] },
    side = weights ? 1 : -1;
  for (const v of panel.violins) {
    if (v.cell < 0 || v.column < 0) continue;
    const [low, high, median, best] = part(run, "ends", state.metric, v.cell, weights, v.column);
    if (Number.isNaN(low)) continue;
    const width = part(run, "violin", state.metric, v.cell, weights, v.column);
    if (run.cells[v.cell].count >= FEW) {
      body.x.push(v.x);
      body.y.push(low);
      width.forEach((w, i) => {
        body.x.push(v.x + (side * WIDTH * w) / 255);
        body.y.push(low + ((high - low) * i) / (width.length - 1));
      });
      body.x.push(v.x, null);
      body.y.push(high, null);
    }
    for (const [at, size] of [
      [median, LONG_TICK],
      [best, SHORT_TICK],
    ]) {
      ticks.x.push(v.x, v.x + side * size, null);
      ticks.y.push(at, at, null);
    }
  }
  return { body, ticks };
}

// What a guess reaches at each violin, as a line above the band of trained lengths.
function guessLine(run, panel) {
  const x = panel.violins.flatMap((v) => [v.x - 0.5, v.x + 0.5]);
  const y = panel.violins.flatMap((v) => Array(2).fill(guessOf(run.settings[v.setting], state.metric, v.at)));
  return { x, y };
}

// The band of trained lengths, and the lengths that the task marks: the first solid, the second dashed.
function backdrop(run, panel, x, y) {
  if (state.by !== "length") return [];
  const setting = run.settings[panel.setting],
    trained = setting.lengths.filter((length) => length <= setting.trainLength).length,
    whole = { layer: "below", xref: x, yref: `${y} domain`, y0: 0, y1: 1 };
  const band = { ...whole, type: "rect", x0: -0.6, x1: trained - 0.5, fillcolor: css("band"), line: { width: 0 } };
  const marks = Object.values(setting.marks).map((length, i) => {
    const at = placeOfLength(setting, length);
    return {
      ...whole,
      type: "line",
      x0: at,
      x1: at,
      line: { color: css("ink"), width: i ? 1 : 2, dash: i ? "dash" : "solid" },
    };
  });
  return [band, ...marks];
}

// The violin of a bin stands for its middle.
function placeOfLength(setting, length) {
  const centers = setting.lengths.map((end) => end - (setting.bin[state.metric] ?? 0) / 2);
  const after = centers.findIndex((center) => center >= length);
  if (after <= 0) return after === 0 ? 0 : centers.length - 1;
  return after - 1 + (length - centers[after - 1]) / (centers[after] - centers[after - 1]);
}

const cellsOf = (run, panel) =>
  [...new Set(panel.violins.map((v) => v.cell).filter((at) => at >= 0))].map((at) => run.cells[at]);

function caption(run, panel) {
  const cells = cellsOf(run, panel),
    diverged = cells.reduce((sum, of) => sum + of.diverged, 0);
  return !cells.length ? "no models yet" : diverged ? `${count(diverged)} diverged` : "";
}

const hasValues = (run, panel) =>
  panel.violins.some(
    (v) => v.cell >= 0 && v.column >= 0 && !Number.isNaN(part(run, "ends", state.metric, v.cell, 0, v.column)[0]),
  );

// Without panels that would be empty.
const drawnPanels = (run) => violinPanels(run).filter((panel) => hasValues(run, panel));

function panelTraces(run, panel, at, { dots, every, heavy, small, chosen }) {
  const traces = [],
    few = cellsOf(run, panel).every((of) => of.count < FEW);
  state.weights.forEach((on, weights) => {
    if (!on) return;
    const { body, ticks } = outlines(run, panel, weights),
      color = weightsColor(run, panel.variant, weights);
    traces.push({ ...at, ...body, mode: "lines", fill: "toself", line: { width: 0 }, fillcolor: color, opacity: 0.5 });
    if (dots || few) {
      const of = dotsOf(run, panel, weights, every, chosen);
      panel.dots.push({ ...of, weights, trace: at.from + traces.length });
      traces.push({
        ...at,
        type: heavy ? "scattergl" : "scatter",
        mode: "markers",
        x: of.x,
        y: of.y,
        hoverinfo: "none",
        marker: {
          size: heavy || !dots ? 2 : small ? 3 : 4,
          color: mix(color, css("ink"), 0.45),
          opacity: heavy ? 0.4 : 0.75,
        },
        selectedpoints: chosen ? of.models.flatMap((model, i) => (chosen[model] ? [i] : [])) : null,
        selected: { marker: { opacity: 0.95 } },
        unselected: { marker: { opacity: 0.08 } },
      });
    }
    traces.push({ ...at, ...ticks, mode: "lines", line: { width: 1.4, color: css("ink") } });
  });
  const guess = guessLine(run, panel);
  if (guess.y.some((value) => value !== null))
    traces.push({
      ...at,
      ...guess,
      mode: "lines",
      name: "guess",
      line: { color: css("soft"), width: 1.4, dash: "dot" },
    });
  for (const kind of dots ? ["same", "pinned"] : []) {
    panel[kind] = at.from + traces.length;
    traces.push({ ...at, ...pinLook(kind), type: heavy ? "scattergl" : "scatter", x: [], y: [] });
  }
  return traces.map(({ from, ...trace }) => trace);
}

function panelNotes(run, panel, x, y, width, dots) {
  const guess = guessLine(run, panel),
    end = guess.y.findLastIndex((value) => value !== null),
    size = dots ? 12 : 10.5;
  const title = lines(panel.title, width - 24, 1.08 * size)
      .map(plain)
      .join("<br>"),
    said = dots ? caption(run, panel) : "",
    swatch = `<span style="color:${variantColor(run, panel.variant)}">■</span> `;
  const notes = [
    {
      xref: `${x} domain`,
      yref: `${y} domain`,
      x: 0,
      y: 1,
      yshift: 4,
      xanchor: "left",
      yanchor: "bottom",
      showarrow: false,
      align: "left",
      font: { size },
      text: `${swatch}<b>${title}</b>${said ? ` <span style="font-size:11px;color:${css("soft")}">${said}</span>` : ""}`,
    },
  ];
  if (dots && end >= 0)
    notes.push({
      xref: x,
      yref: y,
      x: guess.x[end],
      y: guess.y[end],
      xanchor: "right",
      yanchor: "bottom",
      showarrow: false,
      text: "guess",
      font: { size: 10.5, color: css("soft") },
    });
  return notes;
}

// Traces and layout; without dots for the small pictures of the front page.
function violinPicture(run, width, dots = true, chosen = null) {
  const drawn = drawnPanels(run),
    most = Math.max(1, ...drawn.map((panel) => panel.violins.length)),
    wide = most > MANY_VIOLINS;
  const atMost = dots ? (wide ? 2 : 4) : drawn.length > 4 ? 4 : 2,
    least = dots ? (wide ? 460 : 250) : 95;
  const columns = Math.max(1, Math.min(atMost, drawn.length, Math.floor(width / least))),
    rows = Math.max(1, Math.ceil(drawn.length / columns)),
    room = ((1 - 0.07) * (width - 62)) / columns;
  const total = drawn.reduce(
    (sum, panel) => sum + 2 * panel.violins.reduce((n, v) => n + Math.min(run.cells[v.cell]?.count ?? 0, MANY), 0),
    0,
  );
  const heavy = total > MANY_DOTS && WEBGL,
    every = total > MANY_DOTS && !WEBGL ? Math.ceil(total / MANY_DOTS) : 1;
  const traces = [],
    shapes = [],
    annotations = [],
    axes = {};
  drawn.forEach((panel, place) => {
    const n = place ? place + 1 : "",
      [x, y] = [`x${n}`, `y${n}`],
      at = { xaxis: x, yaxis: y, hoverinfo: "skip", from: traces.length };
    panel.axes = [`xaxis${n}`, `yaxis${n}`];
    panel.dots = [];
    traces.push(...panelTraces(run, panel, at, { dots, every, heavy, small: total > 2000, chosen }));
    shapes.push(...backdrop(run, panel, x, y));
    annotations.push(...panelNotes(run, panel, x, y, room, dots));
    axes[`xaxis${n}`] = axis({
      range: [-0.6, panel.labels.length - 0.4],
      tickvals: panel.labels.map((_, i) => i),
      ticktext: thinned(panel.labels, room - 10),
      title: place >= drawn.length - columns && dots ? plain(lengthTitle(run, panel)) : "",
      showgrid: false,
      fixedrange: true,
      tickangle: 0,
      automargin: dots,
    });
    axes[`yaxis${n}`] = axis({
      matches: place ? "y" : undefined,
      showticklabels: place % columns === 0,
      title: place % columns === 0 && dots ? plain(run.metrics[state.metric].label) : "",
    });
  });
  const titleLines = Math.max(1, ...drawn.map((panel) => lines(panel.title, room - 24, 13).length)),
    height = (dots ? (wide ? 250 : 310) : drawn.length > 4 ? 120 : 150) + 14 * titleLines;
  return {
    traces,
    drawn,
    layout: layout({
      ...axes,
      shapes,
      annotations,
      width,
      height: 56 + rows * height,
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "select",
      grid: {
        rows,
        columns,
        pattern: "independent",
        roworder: "top to bottom",
        xgap: 0.07,
        ygap: 0.2 + 0.06 * titleLines,
      },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("soft"), activecolor: css("ink") },
      margin: { l: 50, r: 12, t: 14 + 15 * titleLines, b: dots ? 48 : 24 },
      selectdirection: "any",
      newselection: { line: { color: css("pin"), width: 1 } },
    }),
  };
}

function lengthTitle(run, panel) {
  if (state.by === "length") return `input length (${run.unit})`;
  return /^\d+$/.test(panel.labels[0] ?? "") ? `training length s (${run.unit})` : "";
}

function keyText(run) {
  const metric = run.metrics[state.metric],
    counts = extent(shown.flatMap((panel) => cellsOf(run, panel).map((of) => of.count))),
    per = counts[0] === counts[1] ? count(counts[0]) : `${count(counts[0])} to ${count(counts[1])}`,
    left = shown.length ? run.settings.filter((setting) => columnOf(setting, state.at) < 0) : [];
  const said = [
    `${metric.lowerIsBetter ? "Lower" : "Higher"} is better.`,
    `One panel per variant, ${per} models per violin; each dot is a model with its own random hyperparameters, at its best checkpoint.`,
    counts[1] > MANY ? `At most ${SOME} of a violin's models and its extremes are shown as dots.` : "",
    `Left, in color: ${WEIGHTS[0]}; right, gray: ${WEIGHTS[1]}, a moving average of them.`,
    `Long tick: median; short tick: ${Math.round(metric.best * 100)}% quantile.`,
  ];
  if (state.by === "length") {
    said.push("Shaded: trained lengths.");
    Object.keys(run.settings[state.setting].marks).forEach((what, i) => {
      said.push(`${i ? "Dashed" : "Solid"} line: ${what}.`);
    });
  } else if (left.length && state.at === "new") {
    said.push(
      `Not shown, as it leaves no longer inputs to test on: ${left.map((s) => settingLabel(run, s)).join(", ")}.`,
    );
  }
  if (shown.some((panel) => guessLine(run, panel).y.some((y) => y !== null)))
    said.push("Dotted: the best guess that ignores the input.");
  said.push("Click a dot to see its model, drag a box to select models, or use the arrow keys.");
  return said.filter(Boolean).join(" ");
}

// One row per violin.
function violinTable() {
  const run = state.run,
    byLength = state.by === "length";
  const rows = shown.flatMap((panel) =>
    panel.violins
      .filter((v) => v.cell >= 0 && v.column >= 0)
      .map((v) => {
        const ends = [0, 1].map((w) => part(run, "ends", state.metric, v.cell, w, v.column)),
          guess = guessOf(run.settings[v.setting], state.metric, v.at),
          label = panel.labels[v.x];
        return [
          run.variants[panel.variant],
          byLength ? label : settingLabel(run, run.settings[v.setting]),
          count(run.cells[v.cell].count),
          ...ends.flatMap(([, , median, best]) => [number(median), number(best)]),
          guess === null ? "" : number(guess),
        ];
      }),
  );
  const best = `${Math.round(run.metrics[state.metric].best * 100)}% quantile`;
  return table(
    ["variant", byLength ? "length" : "setting", "models", "median", best, "BEMA median", `BEMA ${best}`, "guess"],
    rows,
    2,
  );
}

function drawViolins() {
  const run = state.run,
    plot = $("violins");
  plot.hidden = false;
  const picture = violinPicture(run, plot.clientWidth || 800, true, selection());
  shown = picture.drawn;
  hideTip();
  Plotly.react(plot, picture.traces, picture.layout, {
    displaylogo: false,
    responsive: false,
    showTips: false,
    modeBarButtons: [["toImage"], ["select2d", "zoom2d", "pan2d"], ["resetScale2d"]],
    toImageButtonOptions: { filename: run.name, scale: 2 },
  });
  if (!plot.listening) listenToViolins(plot);
  markPinned();
  const where = state.by === "length" ? settingLabel(run, run.settings[state.setting]) : `on ${atText(state.at)}`;
  $("violins-title").textContent =
    `All models: ${run.metrics[state.metric].label} ${state.by === "length" ? "by input length, trained at" : "by training length,"} ${where}`;
  $("key").textContent = keyText(run);
  violinsAsTable.refresh();
  if (violinsAsTable.ariaPressed === "true") plot.hidden = true;
}

const violinsAsTable = tableButton($("violins"), violinTable);
$("violins-head").append(violinsAsTable);

panels.push({
  needs: ["run", "metric", "by", "at", "setting", "variants", "weights", "theme", ...SELECTION],
  draw: drawViolins,
});
