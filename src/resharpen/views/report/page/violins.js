// Split violins as in the PNG: the left half training weights, the right half BEMA, one dot per model.

const WIDTH = 0.43, MANY_DOTS = 10000, MANY_VIOLINS = 12, LONG_TICK = 0.4, SHORT_TICK = 0.22;
const WEBGL = document.createElement("canvas").getContext("webgl") !== null;
let shown = [];  // the panels as they are drawn

// One panel per variant (and task), with one violin per training length, or per length.
function violinPanels(run) {
  const variants = run.variants.map((_, i) => i).filter((i) => state.variants[i]);
  const find = (setting, variant) => run.cells.findIndex((cell) => cell.setting === setting && cell.variant === variant);
  if (state.by === "length") {
    const { lengths } = run.settings[state.setting];
    const task = run.settings.length > 1 ? `, ${run.settings[state.setting].title}` : "";
    return variants.map((variant) => ({
      variant, setting: state.setting, title: run.variants[variant] + task, labels: lengths.map((length) => length.toLocaleString("en")),
      violins: lengths.map((length, x) => ({ x, length, column: 1 + x, cell: find(state.setting, variant) })),
    }));
  }
  const titles = [...new Set(run.settings.map((setting) => setting.title))], all = run.settings.map((_, i) => i);
  // tasks with one setting each share a panel
  const groups = titles.length === all.length ? [["", all]] : titles.map((title) => [title, all.filter((i) => run.settings[i].title === title)]);
  return groups.flatMap(([title, settings]) => variants.map((variant) => ({
    variant, setting: settings[0], title: groups.length > 1 ? `${run.variants[variant]}, ${title}` : run.variants[variant],
    labels: settings.map((i) => (title || titles.length === 1 ? String(run.settings[i].trainLength) : run.settings[i].title)),
    violins: settings.map((i, x) => {
      const at = run.settings[i].lengths.indexOf(state.length);
      return { x, length: state.length, column: state.length === null ? 0 : at < 0 ? -1 : 1 + at, cell: find(i, variant) };
    }),
  })));
}

// Dots are spread by rank rather than at random, as in views/violins.py.
// With very many dots and no WebGL to draw them, only every n-th is shown.
function dotsOf(run, panel, weights, every) {
  const x = [], y = [], models = [], violin = [], side = weights ? 1 : -1;
  panel.violins.forEach((v, number) => {
    if (v.cell < 0 || v.column < 0) return;
    const { start, count } = run.cells[v.cell];
    let rank = 0;
    for (let i = start; i < start + count; i++) {
      const value = valueOf(run, state.metric, weights, i, v.length);
      if (Number.isNaN(value) || rank++ % every) continue;
      x.push(v.x + side * (0.06 + 0.24 * (((rank - 1) * 0.618034) % 1)));
      y.push(value); models.push(i); violin.push(number);
    }
  });
  return { x, y, models, violin };
}

// The outlines of all halves in one trace, with gaps between them, and their ticks in another.
function outlines(run, panel, weights) {
  const body = { x: [], y: [] }, ticks = { x: [], y: [] }, side = weights ? 1 : -1;
  for (const v of panel.violins) {
    if (v.cell < 0 || v.column < 0) continue;
    const [low, high, median, best] = part(run, "ends", state.metric, v.cell, weights, v.column);
    if (Number.isNaN(low)) continue;
    const width = part(run, "violin", state.metric, v.cell, weights, v.column);
    body.x.push(v.x); body.y.push(low);
    width.forEach((w, i) => {
      body.x.push(v.x + side * WIDTH * w / 255); body.y.push(low + (high - low) * i / (width.length - 1));
    });
    body.x.push(v.x, null); body.y.push(high, null);
    for (const [at, size] of [[median, LONG_TICK], [best, SHORT_TICK]]) {
      ticks.x.push(v.x, v.x + side * size, null); ticks.y.push(at, at, null);
    }
  }
  return { body, ticks };
}

function backdrop(run, panel, x, y) {
  const setting = run.settings[panel.setting], guess = setting.guess[state.metric], shapes = [];
  const line = (more) => shapes.push({ type: "line", layer: "below", line: { color: css("soft"), width: 1, dash: "dot" }, ...more });
  if (guess !== null) line({ xref: `${x} domain`, yref: y, x0: 0, x1: 1, y0: guess, y1: guess });
  if (state.by !== "length") return shapes;
  const trained = setting.lengths.filter((length) => length <= setting.trainLength).length;
  shapes.push({ type: "rect", layer: "below", xref: x, yref: `${y} domain`, x0: -0.6, x1: trained - 0.5, y0: 0, y1: 1,
    fillcolor: css("band"), line: { width: 0 } });
  Object.values(setting.marks).forEach((length, i) => {
    const at = placeOfLength(setting, length);
    line({ xref: x, yref: `${y} domain`, x0: at, x1: at, y0: 0, y1: 1, line: { color: i ? css("ink") : "#cc79a7", width: i ? 1 : 2.4, dash: i ? "dash" : "solid" } });
  });
  return shapes;
}

// The violin of a bin stands for its middle.
function placeOfLength(setting, length) {
  const centers = setting.lengths.map((end) => end - (setting.bin[state.metric] ?? 0) / 2);
  const after = centers.findIndex((center) => center >= length);
  if (after <= 0) return after === 0 ? 0 : centers.length - 1;
  return after - 1 + (length - centers[after - 1]) / (centers[after] - centers[after - 1]);
}

function caption(run, panel) {
  const cells = [...new Set(panel.violins.map((v) => v.cell).filter((cell) => cell >= 0))].map((i) => run.cells[i]);
  const counts = [...new Set(cells.map((cell) => cell.count))].sort((a, b) => a - b);
  const diverged = cells.reduce((sum, cell) => sum + cell.diverged, 0);
  const each = counts.length ? `${counts.map((n) => n.toLocaleString("en")).join("-")} models per violin` : "no models yet";
  return diverged ? `${each}, ${diverged} diverged` : each;
}

// Traces and layout; without dots for the small pictures of the front page.
function violinPicture(run, width, dots = true) {
  const drawn = violinPanels(run), wide = Math.max(...drawn.map((p) => p.violins.length)) > MANY_VIOLINS;
  const most = dots ? (wide ? 2 : 4) : drawn.length > 4 ? 4 : 2, least = dots ? (wide ? 460 : 250) : 95;
  const columns = Math.max(1, Math.min(most, drawn.length, Math.floor(width / least)));
  const rows = Math.ceil(drawn.length / columns), metric = run.metrics[state.metric];
  const total = drawn.reduce((sum, panel) => sum + 2 * panel.violins.reduce((n, v) => n + (run.cells[v.cell]?.count ?? 0), 0), 0);
  const heavy = total > MANY_DOTS && WEBGL, every = total > MANY_DOTS && !WEBGL ? Math.ceil(total / MANY_DOTS) : 1;
  const room = Math.floor((0.93 * (width - 62)) / columns / (dots ? 7.5 : 6.6)); // letters of a title
  const short = (text) => (text.length > room ? `${text.slice(0, room - 1)}\u2026` : text);
  const traces = [], shapes = [], annotations = [], axes = {};
  drawn.forEach((panel, place) => {
    const n = place ? place + 1 : "", x = `x${n}`, y = `y${n}`, at = { xaxis: x, yaxis: y, hoverinfo: "skip" };
    panel.axes = [`xaxis${n}`, `yaxis${n}`]; panel.dots = [];
    state.weights.forEach((on, weights) => {
      if (!on) return;
      const { body, ticks } = outlines(run, panel, weights), color = weights ? "bema" : "train";
      traces.push({ ...at, ...body, mode: "lines", fill: "toself", line: { width: 0 }, fillcolor: css(color), opacity: 0.5 });
      if (dots) {
        const of = dotsOf(run, panel, weights, every);
        panel.dots.push({ ...of, weights, trace: traces.length });
        traces.push({ ...at, type: heavy ? "scattergl" : "scatter", mode: "markers", x: of.x, y: of.y, hoverinfo: "none",
          marker: { size: heavy ? 2 : total > 2000 ? 3 : 4, color: css(`${color}-dot`), opacity: heavy ? 0.4 : 0.75 },
          selected: { marker: { opacity: 0.95 } }, unselected: { marker: { opacity: 0.08 } } });
      }
      traces.push({ ...at, ...ticks, mode: "lines", line: { width: 1.2, color: css("ink") } });
    });
    if (dots) for (const kind of ["same", "pinned"]) {
      panel[kind] = traces.length;
      const pin = kind === "pinned", by = state.by === "length";
      traces.push({ ...at, type: heavy ? "scattergl" : "scatter", x: [], y: [], mode: "lines+markers", line: { width: pin ? 1.6 : 0.8, color: css("pin"), dash: pin ? "solid" : "dot" },
        marker: { symbol: pin ? "diamond" : "diamond-open", size: by ? (pin ? 6 : 4) : 11, color: css("pin"), line: { width: 1, color: css(pin ? "paper" : "pin") } } });
    }
    shapes.push(...backdrop(run, panel, x, y));
    annotations.push({ xref: `${x} domain`, yref: `${y} domain`, x: 0, y: 1, yshift: dots ? 34 : 24, xanchor: "left", yanchor: "top", showarrow: false,
      align: "left", font: { size: dots ? 12 : 10 }, text: `<b>${plain(short(panel.title))}</b>${dots ? `<br><span style="font-size:11px;color:${css("soft")}">${caption(run, panel)}</span>` : ""}` });
    const last = place >= drawn.length - columns;
    const unit = state.by === "length" ? `input length (${run.unit})` : /^\d+$/.test(panel.labels[0] ?? "") ? `training length (${run.unit})` : "";
    const fit = Math.max(1, Math.floor(room / (2 + Math.max(...panel.labels.map((text) => text.length)))));
    const labeled = dots ? 1 : Math.ceil(panel.labels.length / fit);
    axes[`xaxis${n}`] = axis({ range: [-0.6, panel.labels.length - 0.4], tickvals: panel.labels.map((_, i) => i), ticktext: panel.labels.map((text, i) => (i % labeled ? "" : text)),
      title: last && dots ? plain(unit) : "", showgrid: false, fixedrange: true, tickangle: dots && panel.labels.length > MANY_VIOLINS ? -45 : 0, automargin: dots });
    axes[`yaxis${n}`] = axis({ matches: place ? "y" : undefined, showticklabels: place % columns === 0,
      title: place % columns === 0 && dots ? plain(state.by === "length" || state.length !== null ? metric.label : `mean ${metric.label}`) : "" });
  });
  const height = dots ? (wide ? 250 : 320) : drawn.length > 4 ? 110 : 150;
  return { traces, drawn, layout: layout({
    ...axes, shapes, annotations, width, height: 70 + rows * height, dragmode: matchMedia("(pointer: coarse)").matches ? false : "select",
    grid: { rows, columns, pattern: "independent", roworder: "top to bottom", xgap: 0.07, ygap: dots ? 0.28 : 0.38 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("soft"), activecolor: css("ink") },
    margin: { l: 50, r: 12, t: dots ? 52 : 28, b: dots ? 48 : 24 }, selectdirection: "any", newselection: { line: { color: css("pin"), width: 1 } },
  }) };
}

function drawViolins() {
  const run = state.run, plot = $("violins"), picture = violinPicture(run, plot.clientWidth);
  shown = picture.drawn;
  hideTip();
  Plotly.react(plot, picture.traces, picture.layout, { displaylogo: false, responsive: false, showTips: false,
    modeBarButtons: [["toImage"], ["select2d", "lasso2d", "zoom2d", "pan2d"], ["resetScale2d"]], toImageButtonOptions: { filename: run.name, scale: 2 } });
  if (!plot.listening) listenToViolins(plot);
  markPinned(); markSelection();
  const metric = run.metrics[state.metric];
  $("key").textContent = `Left ${WEIGHTS[0]}, right ${WEIGHTS[1]}; every dot is a model with its own hyperparameters, at its best checkpoint. `
    + `Long tick: median; short tick: ${Math.round(metric.best * 100)}% quantile. ${metric.lowerIsBetter ? "Lower" : "Higher"} is better. `
    + (state.by === "length" ? "Shaded: trained lengths. " + Object.keys(run.settings[state.setting].marks).map((what, i) => `${i ? "Dashed" : "Pink"} line: ${what}. `).join("") : "")
    + (run.settings[state.setting].guess[state.metric] === null ? "" : "Dotted: a guess. ")
    + "Click a dot to pin it, drag a box to select, or use the arrow keys.";
}

function listenToViolins(plot) {
  plot.listening = true;
  const found = (event) => (event?.points ?? []).flatMap(({ curveNumber, pointNumber: index }) => shown.flatMap((panel) =>
    panel.dots.filter(({ trace }) => trace === curveNumber).map((dots) => ({ panel, dots, index, model: dots.models[index] }))));
  plot.on("plotly_hover", (event) => found(event).slice(0, 1).forEach(point));
  plot.on("plotly_unhover", hideTip);
  plot.on("plotly_click", (event) => found(event).slice(0, 1).forEach(({ model }) => change({ pinned: model })));
  plot.on("plotly_selected", (event) => {
    const boxed = new Set(found(event).map(({ model }) => model));
    if (boxed.size) change({ boxed });
  });
  plot.on("plotly_deselect", () => change({ boxed: null }));
}

// Linked selection: models that are not selected fade.
function markSelection() {
  const chosen = selection(), traces = [], points = [];
  for (const panel of shown) for (const dots of panel.dots) {
    traces.push(dots.trace);
    points.push(chosen ? dots.models.flatMap((model, i) => (chosen[model] ? [i] : [])) : null);
  }
  if (traces.length) Plotly.restyle("violins", { selectedpoints: points }, traces);
  $("chosen").replaceChildren();
  if (!chosen) { if ($("violins").layout?.selections?.length) Plotly.relayout("violins", { selections: [] }); return; }
  const count = (start, end) => chosen.subarray(start, end).reduce((a, b) => a + b, 0);
  const by = state.run.variants.map((name, v) => `${name} ${state.run.cells.filter((c) => c.variant === v)
    .reduce((sum, c) => sum + count(c.start, c.start + c.count), 0).toLocaleString("en")}`);
  $("chosen").append(`${count().toLocaleString("en")} of ${many(state.run.models, "model")} selected: ${by.join(", ")}`,
    el("button", { type: "button", onclick: () => change({ brushes: {}, boxed: null }) }, "Clear"));
}

// The pinned model is a full diamond, the models of the same draw are open ones.
function markPinned() {
  const traces = [], x = [], y = [], same = state.pinned === null ? [] : sameDraw(state.run, state.pinned);
  for (const panel of shown) for (const kind of ["same", "pinned"]) {
    const wanted = kind === "pinned" ? (model) => model === state.pinned : (model) => model !== state.pinned && same.includes(model);
    const of = panel.dots.flatMap((dots) => [...dots.models.flatMap((model, i) => (wanted(model) ? [[dots.x[i], dots.y[i]]] : [])), [null, null]]);
    traces.push(panel[kind]); x.push(of.map((p) => p[0])); y.push(of.map((p) => p[1]));
  }
  if (traces.length) Plotly.restyle("violins", { x, y }, traces);
}

panels.push({ needs: ["run", "metric", "by", "length", "setting", "variants", "weights", "theme"], draw: drawViolins });
panels.push({ needs: ["pinned"], draw: markPinned });
panels.push({ needs: ["brushes", "boxed"], draw: markSelection });
