// The pinned model on a card beside the charts: by length, over training, its hyperparameters, its matrices.

const CARD = 460, // pixels, as in report.css
  NARROW = 560;

// The card stands on the side where it does not cover what was clicked; on a phone, below it.
function pin(model, { clientX = 0, clientY = 0 } = {}) {
  hideTip();
  $("model").classList.toggle("left", clientX > innerWidth - CARD && innerWidth > 2 * CARD);
  if (innerWidth <= NARROW && clientY > 0.3 * innerHeight) scrollBy({ top: clientY - 0.2 * innerHeight });
  $("unknown").textContent = "";
  change({ pinned: model });
}

function drawModel() {
  const run = state.run,
    model = state.pinned,
    box = $("model");
  box.replaceChildren();
  document.body.classList.toggle("pinned", model !== null);
  if (model === null) return;
  box.scrollTop = 0;
  const id = idOf(run, model),
    metric = run.metrics[state.metric],
    diverged = part(run, "diverged")[model],
    own = settingAt(run, model);
  const close = () => {
    change({ pinned: null });
    $("violins").focus();
  };
  const scores = ["new", "all"]
    .filter((at) => columnOf(own, at) >= 0)
    .map((at) => [atText(at), ...[0, 1].map((w) => number(scoreOf(run, state.metric, w, model, at)))]);
  box.append(
    el(
      "div",
      { className: "head" },
      el("span", { className: "id" }, id),
      el("button", { type: "button", className: "screen", ariaLabel: "close", onclick: close }, "×"),
    ),
    el(
      "p",
      { className: "note" },
      `${own.title}, ${own.label}; ${run.described[cellAt(run, model).variant]}. ${standing(run, model)}` +
        (diverged < 0 ? "" : ` Diverged at step ${count(diverged)}.`),
    ),
    table([metric.label, ...WEIGHTS], scores),
  );
  const charts = el("div", { className: "charts" });
  box.append(charts);
  drawLengths(charts, run, model);
  drawTraining(charts, run, model);
  drawInside(box, run, model);
  const more = run.about.facts.run
    ? ["More: ", el("code", {}, `resharpen inspect ${run.about.facts.run} --model ${id}`)]
    : ["A reference keeps neither weights nor curves of its models."];
  box.append(siblings(run, model), hyperparametersOf(run, model, "hypers"), el("p", { className: "note" }, ...more));
}

function standing(run, model) {
  const { start, count: n } = cellAt(run, model),
    at = hasNew(settingAt(run, model)) ? "new" : "all",
    own = scoreOf(run, state.metric, 0, model, at);
  if (Number.isNaN(own)) return "It has no score and counts as worst.";
  const better = run.metrics[state.metric].lowerIsBetter ? (x) => x < own : (x) => x > own;
  const values = part(run, at === "new" ? "new" : "mean", state.metric, 0).subarray(start, start + n);
  return `Rank ${count(1 + values.filter(better).length)} of ${count(n)} on ${atText(at)}.`;
}

function hyperparametersOf(run, model, className) {
  const rows = run.hyperparameters
    .map(({ name }, h) => [name, part(run, "hyper", h)[model]])
    .filter(([, x]) => !Number.isNaN(x));
  return el(
    "dl",
    { className },
    rows.map(([name, x]) => el("div", {}, el("dt", {}, words(name)), el("dd", {}, number(x, 3)))),
  );
}

function siblings(run, model) {
  const at = hasNew(settingAt(run, model)) ? "new" : "all";
  const links = sameDraw(run, model).map((other) =>
    el(
      "button",
      {
        type: "button",
        className: "toggle",
        ariaPressed: String(other === model),
        onclick: () => change({ pinned: other }),
      },
      `${run.variants[cellAt(run, other).variant]} ${number(scoreOf(run, state.metric, 0, other, at), 3)}`,
    ),
  );
  return el("div", { className: "siblings" }, `The same draw with each variant, ${atText(at)}:`, ...links);
}

function lineOf(run, model, weights, more) {
  const color = weightsColor(run, cellAt(run, model).variant, weights);
  return {
    mode: "lines+markers",
    name: WEIGHTS[weights],
    marker: { size: 5, symbol: weights ? "square" : "circle" },
    line: { color, width: 2, dash: weights ? "dash" : "solid" },
    ...more,
  };
}

// Lines with their names at their right ends.
function labeledLines(traces, height = 240) {
  const [low, high] = extent(traces.flatMap(({ y }) => y)),
    pad = 0.06 * (high - low) || 0.01;
  const ends = traces.map(({ y, name }) => ({
      y: y.findLast((value) => value !== null && !Number.isNaN(value)),
      text: name,
    })),
    right = 12 + Math.max(...ends.map(({ text }) => widthOf(text)));
  return {
    height,
    margin: { l: 48, r: right, t: 12, b: 40 },
    range: [low - pad, high + pad],
    annotations: endLabels(ends, low, high, height - 60),
  };
}

const LAST = ["training", "BEMA"];

function drawLengths(parent, run, model) {
  const setting = settingAt(run, model),
    of = run.cellOf[model],
    x = setting.lengths.map((_, i) => i),
    metric = run.metrics[state.metric];
  const values = (w) => [...part(run, "value", state.metric, w, model)].slice(0, x.length),
    medians = x.map((i) => part(run, "ends", state.metric, of, 0, 2 + i)[2]),
    guess = setting.lengths.map((length) => guessOf(setting, state.metric, length));
  const traces = [0, 1].map((w) =>
    lineOf(run, model, w, { x, y: values(w), name: LAST[w], hovertemplate: "%{y:.4f}" }),
  );
  const thin = (name, y, dash) =>
    traces.push({
      mode: "lines",
      name,
      x,
      y,
      line: { color: css("soft"), dash, width: 1.3 },
      hovertemplate: "%{y:.4f}",
    });
  thin("median", medians, "dashdot");
  if (guess.some((y) => y !== null)) thin("guess", guess, "dot");
  const { range, annotations, margin, height } = labeledLines(traces),
    trained = setting.lengths.filter((length) => length <= setting.trainLength).length;
  chart(
    parent,
    `${metric.label} by length (shaded: trained; median: of all ${run.variants[cellAt(run, model).variant]} models)`,
    traces,
    {
      height,
      margin,
      annotations,
      shapes: [
        {
          type: "rect",
          layer: "below",
          x0: -0.5,
          x1: trained - 0.5,
          y0: 0,
          y1: 1,
          yref: "y domain",
          fillcolor: css("band"),
          line: { width: 0 },
        },
      ],
      xaxis: axis({
        range: [-0.5, x.length - 0.5],
        tickvals: x,
        ticktext: thinned(setting.lengths.map(count), 260),
        tickangle: 0,
        title: `length (${plain(run.unit)})`,
      }),
      yaxis: axis({ range }),
    },
    () =>
      table(
        ["length", ...traces.map(({ name }) => name)],
        x.map((i) => [count(setting.lengths[i]), ...traces.map(({ y }) => number(y[i]))]),
      ),
  );
}

function drawTraining(parent, run, model) {
  if (!run.checkpoints.length) return;
  const x = run.checkpoints,
    kept = [0, 1].map((w) => part(run, "kept", w)[model]),
    metric = run.metrics[run.metric];
  const curve = (w, name, y) =>
    lineOf(run, model, w, { mode: "lines", name, x, y, hovertemplate: "step %{x}: %{y:.4f}" });
  const shapes = kept.flatMap((step, w) =>
    step < 0
      ? []
      : [
          {
            type: "line",
            x0: step,
            x1: step,
            y0: 0,
            y1: 1,
            yref: "y domain",
            line: { color: weightsColor(run, cellAt(run, model).variant, w), width: 1, dash: "dot" },
          },
        ],
  );
  const draw = (caption, traces, more) => {
    const { range, annotations, margin, height } = labeledLines(traces);
    chart(
      parent,
      caption,
      traces,
      { height, margin, annotations, ...more, xaxis: axis({ title: "step" }), yaxis: axis({ range }) },
      () =>
        table(
          ["step", ...traces.map(({ name }) => name)],
          x.map((step, i) => [count(step), ...traces.map(({ y }) => number(y[i]))]),
        ),
    );
  };
  const scores = [0, 1].map((w) => curve(w, LAST[w], curveValues(run, "score", w, model)));
  draw(`${metric.label} over training (dotted: the checkpoint that was kept)`, scores, { shapes });
  draw("Training loss (nats)", [curve(0, "loss", curveValues(run, "loss", model))], {});
}

const INSIDE = [
  ["B: logits from the last token", "logit of token", "last token"],
  ["D: logits moved by attention", "logit of token", "token attended to"],
  ["Attention, rows summing to 1", "token attended to", "last token"],
];

function drawInside(box, run, model) {
  const group = run.inside.find(({ models }) => models.includes(model));
  if (!group) {
    if (run.insideSaid) box.append(el("p", { className: "note" }, `Not included: ${run.insideSaid}`));
    return;
  }
  const row = group.models.indexOf(model),
    v = group.v,
    charts = el("div", { className: "charts" });
  box.append(charts);
  const scales = part(run, `scale-${v}`, row),
    most = Math.max(scales[0], scales[1]),
    diverging = ["#0072b2", css("raised"), "#d55e00"].map((color, i) => [i / 2, color]);
  INSIDE.forEach(([title, across, down], kind) => {
    const matrix = part(run, `inside-${v}`, row, kind),
      entries = (i) => Array.from(matrix.subarray(i * v, (i + 1) * v), (x) => (x * scales[kind]) / 32767),
      z = Array.from({ length: v }, (_, i) => entries(i));
    const colors =
      kind < 2
        ? { colorscale: diverging, zmin: -most, zmax: most }
        : { colorscale: "Cividis", zmin: 0, zmax: scales[kind] };
    chart(
      charts,
      title,
      [
        {
          type: "heatmap",
          z,
          ...colors,
          colorbar: { thickness: 8, outlinewidth: 0, tickfont: { size: 10 } },
          hovertemplate: `${down} %{y}, ${across} %{x}: %{z:.3f}<extra></extra>`,
        },
      ],
      {
        height: 290,
        margin: { l: 40, r: 8, t: 10, b: 40 },
        xaxis: axis({ title: across, constrain: "domain", showgrid: false }),
        yaxis: axis({ title: down, autorange: "reversed", scaleanchor: "x", constrain: "domain", showgrid: false }),
      },
      () =>
        table(
          ["", ...z.map((_, i) => String(i))],
          z.map((values, i) => [String(i), ...values.map((x) => number(x, 3))]),
        ),
    );
  });
}

// Shows the tip of the model under the mouse or chosen with the arrow keys.
function point({ panel, dots, index }) {
  const run = state.run,
    plot = $("violins"),
    model = dots.models[index],
    [xaxis, yaxis] = panel.axes.map((name) => plot._fullLayout[name]);
  const box = plot.getBoundingClientRect(),
    left = box.left + scrollX + xaxis._offset + xaxis.d2p(dots.x[index]);
  const top = box.top + scrollY + yaxis._offset + yaxis.d2p(dots.y[index]);
  Object.assign($("ring").style, { left: `${left}px`, top: `${top}px` });
  const tip = $("tip"),
    { at } = panel.violins[dots.violin[index]],
    metric = run.metrics[state.metric];
  tip.replaceChildren(
    el("div", { className: "id" }, idOf(run, model)),
    el("div", {}, `${metric.label}, ${atText(at)}: ${number(dots.y[index])}, ${WEIGHTS[dots.weights]}`),
    hyperparametersOf(run, model, ""),
  );
  tip.hidden = $("ring").hidden = false;
  const roomRight = left + 18 + tip.offsetWidth < scrollX + document.documentElement.clientWidth;
  tip.style.left = `${Math.max(scrollX + 6, roomRight ? left + 18 : left - 18 - tip.offsetWidth)}px`;
  tip.style.top = `${Math.max(scrollY + 6, Math.min(top - 20, scrollY + innerHeight - tip.offsetHeight - 10))}px`;
}

function hideTip() {
  $("tip").hidden = $("ring").hidden = true;
}

panels.push({ needs: ["run", "pinned", "metric", "theme"], draw: drawModel });
