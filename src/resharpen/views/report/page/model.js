// The pinned model: by length, over training, its hyperparameters, its matrices.

function drawModel() {
  const run = state.run, model = state.pinned, box = $("model");
  box.replaceChildren();
  if (model === null) return;
  const id = idOf(run, model), metric = run.metrics[state.metric], diverged = part(run, "diverged")[model];
  const scores = WEIGHTS.map((name, w) => `${name} ${number(valueOf(run, state.metric, w, model))}`).join(", ");
  const fate = diverged < 0 ? "" : ` Diverged at step ${diverged.toLocaleString("en")}.`;
  const unpin = () => { change({ pinned: null }); $("violins").focus(); };
  box.append(
    el("div", { className: "head" }, el("span", { className: "id" }, id),
      el("button", { type: "button", className: "screen", onclick: unpin }, "Unpin")),
    el("p", { className: "note" }, `Mean ${metric.label} over all lengths: ${scores}; ${standing(run, model)}.${fate}`));
  const charts = el("div", { className: "charts" });
  box.append(charts);
  drawLengths(charts, run, model);
  drawTraining(charts, run, model);
  drawInside(box, run, model);
  box.append(hyperparametersOf(run, model, "hypers"), siblings(run, model));
  box.append(el("p", { className: "note" }, ...(run.about.facts.run ? ["More: ", el("code", {}, `resharpen inspect ${run.about.facts.run} --model ${id}`)]
    : ["A reference keeps neither weights nor curves of its models."])));
}

function standing(run, model) {
  const { start, count } = cellAt(run, model), values = part(run, "mean", state.metric, 0), own = values[model];
  if (Number.isNaN(own)) return "without a score, it counts as worst";
  const better = run.metrics[state.metric].lowerIsBetter ? (x) => x < own : (x) => x > own;
  return `number ${1 + values.subarray(start, start + count).filter(better).length} of ${count.toLocaleString("en")} in its violin`;
}

function hyperparametersOf(run, model, className) {
  const rows = run.hyperparameters.map(({ name }, h) => [name, part(run, "hyper", h)[model]]).filter(([, x]) => !Number.isNaN(x));
  return el("dl", { className }, rows.map(([name, x]) => el("div", {}, el("dt", {}, words(name)), el("dd", {}, number(x, 3)))));
}

function siblings(run, model) {
  const links = sameDraw(run, model).map((other) => el("button", { type: "button", className: "toggle", ariaPressed: String(other === model),
    onclick: () => change({ pinned: other }) }, `${run.variants[cellAt(run, other).variant]} ${number(valueOf(run, state.metric, 0, other), 3)}`));
  return el("div", { className: "siblings" }, "The same draw with each variant:", ...links);
}

const lineOf = (weights, more) => ({ mode: "lines+markers", name: WEIGHTS[weights], marker: { size: 5, symbol: weights ? "square" : "circle" },
  line: { color: css(weights ? "bema" : "train"), width: 2 }, ...more });
const LEGEND = { showlegend: true, legend: { orientation: "h", x: 0, y: 1.16, font: { size: 11 } }, margin: { l: 48, r: 12, t: 22, b: 36 } };

function drawLengths(parent, run, model) {
  const setting = settingAt(run, model), cell = run.cellOf[model], x = setting.lengths.map((_, i) => i), metric = run.metrics[state.metric];
  const traces = [0, 1].map((w) => lineOf(w, { x, y: [...part(run, "value", state.metric, w, model)].slice(0, x.length), hovertemplate: "%{y:.4f}" }));
  traces.push({ mode: "lines", name: "median of its violin", x, y: x.map((i) => part(run, "ends", state.metric, cell, 0, 1 + i)[2]),
    line: { color: css("soft"), dash: "dot", width: 1.3 }, hovertemplate: "%{y:.4f}" });
  const every = Math.ceil(x.length / 9), trained = setting.lengths.filter((length) => length <= setting.trainLength).length;
  chart(parent, `${metric.label} by length`, traces, { ...LEGEND,
    shapes: [{ type: "rect", layer: "below", x0: -0.5, x1: trained - 0.5, y0: 0, y1: 1, yref: "y domain", fillcolor: css("band"), line: { width: 0 } }],
    xaxis: axis({ range: [-0.5, x.length - 0.5], tickvals: x, ticktext: setting.lengths.map((n, i) => (i % every ? "" : n.toLocaleString("en"))), tickangle: 0, title: `length (${plain(run.unit)}); shaded: trained` }),
    yaxis: axis() });
}

function drawTraining(parent, run, model) {
  if (!run.checkpoints.length) return;
  const x = run.checkpoints, kept = [0, 1].map((w) => part(run, "kept", w)[model]), metric = run.metrics[run.metric];
  const traces = [0, 1].map((w) => lineOf(w, { mode: "lines", x, y: [...part(run, "score", w, model)], hovertemplate: "step %{x}: %{y:.4f}" }));
  const shapes = kept.flatMap((step, w) => (step < 0 ? [] : [{ type: "line", x0: step, x1: step, y0: 0, y1: 1, yref: "y domain",
    line: { color: css(w ? "bema" : "train"), width: 1, dash: "dot" } }]));
  const xaxis = () => axis({ title: "step" });
  chart(parent, `Score over training (${metric.label}); dotted: the checkpoint that was kept`, traces, { ...LEGEND, shapes, xaxis: xaxis(), yaxis: axis() });
  const loss = lineOf(0, { mode: "lines", x, y: [...part(run, "loss", model)], hovertemplate: "step %{x}: %{y:.4f}", line: { color: css("ink"), width: 1.6 } });
  chart(parent, "Training loss (nats)", [loss], { margin: LEGEND.margin, xaxis: xaxis(), yaxis: axis() });
}

const INSIDE = [["B: logits from the last token", "logit of token", "last token"], ["D: logits moved by attention", "logit of token", "token attended to"],
  ["Attention, rows summing to 1", "token attended to", "last token"]];

function drawInside(box, run, model) {
  const group = run.inside.find(({ models }) => models.includes(model));
  if (!group) {
    if (run.insideSaid) box.append(el("p", { className: "note" }, `Not included: ${run.insideSaid}`));
    return;
  }
  const row = group.models.indexOf(model), v = group.v, charts = el("div", { className: "charts" });
  box.append(charts);
  const scales = part(run, `scale-${v}`, row), most = Math.max(scales[0], scales[1]);
  INSIDE.forEach(([title, across, down], kind) => {
    const matrix = part(run, `inside-${v}`, row, kind), z = Array.from({ length: v }, (_, i) => Array.from(matrix.subarray(i * v, (i + 1) * v), (x) => x * scales[kind] / 127));
    const colors = kind < 2 ? { colorscale: [[0, "#0072b2"], [0.5, css("raised")], [1, "#d55e00"]], zmin: -most, zmax: most } : { colorscale: "Cividis", zmin: 0 };
    chart(charts, title, [{ type: "heatmap", z, ...colors, colorbar: { thickness: 8, outlinewidth: 0, tickfont: { size: 10 } }, hovertemplate: `${down} %{y}, ${across} %{x}: %{z:.3f}<extra></extra>` }],
      { height: 290, margin: { l: 40, r: 8, t: 10, b: 40 }, xaxis: axis({ title: across, constrain: "domain", showgrid: false }),
        yaxis: axis({ title: down, autorange: "reversed", scaleanchor: "x", constrain: "domain", showgrid: false }) });
  });
}

// Shows the tip of the model under the mouse or chosen with the arrow keys.
function point({ panel, dots, index }) {
  const run = state.run, plot = $("violins"), model = dots.models[index], [xaxis, yaxis] = panel.axes.map((name) => plot._fullLayout[name]);
  const box = plot.getBoundingClientRect(), left = box.left + scrollX + xaxis._offset + xaxis.d2p(dots.x[index]);
  const top = box.top + scrollY + yaxis._offset + yaxis.d2p(dots.y[index]);
  Object.assign($("ring").style, { left: `${left}px`, top: `${top}px` });
  const tip = $("tip"), length = panel.violins[dots.violin[index]].length, metric = run.metrics[state.metric];
  tip.replaceChildren(el("div", { className: "id" }, idOf(run, model)),
    el("div", {}, `${length === null ? `mean ${metric.label}` : `${metric.label} at length ${length.toLocaleString("en")}`}: ${number(dots.y[index])}, ${WEIGHTS[dots.weights]}`),
    hyperparametersOf(run, model, ""));
  tip.hidden = $("ring").hidden = false;
  const roomRight = left + 18 + tip.offsetWidth < scrollX + document.documentElement.clientWidth;
  tip.style.left = `${Math.max(scrollX + 6, roomRight ? left + 18 : left - 18 - tip.offsetWidth)}px`;
  tip.style.top = `${Math.max(scrollY + 6, Math.min(top - 20, scrollY + innerHeight - tip.offsetHeight - 10))}px`;
}

function hideTip() { $("tip").hidden = $("ring").hidden = true; }

panels.push({ needs: ["run", "pinned", "metric", "theme"], draw: drawModel });
