// What the reader does with the violins: hover, click, boxes; and the marks of the pinned model.

const HALF_CENTER = 0.18; // of a half violin, from its middle

function listenToViolins(plot) {
  plot.listening = true;
  const found = (event) =>
    (event?.points ?? []).flatMap(({ curveNumber, pointNumber: index }) =>
      shown.flatMap((panel) =>
        panel.dots
          .filter(({ trace }) => trace === curveNumber)
          .map((dots) => ({ panel, dots, index, model: dots.models[index] })),
      ),
    )[0];
  plot.on("plotly_hover", (event) => {
    const at = found(event);
    if (at && at.model !== state.pinned) point(at); // the card shows the pinned model
  });
  plot.on("plotly_unhover", hideTip);
  plot.on("plotly_click", (event) => {
    const at = found(event);
    if (at) pin(at.model, event.event);
  });
  plot.on("plotly_selected", (event) => {
    if (!event?.range) return;
    const name = Object.keys(event.range).find((key) => key.startsWith("x")),
      panel = shown.findIndex(({ axes }) => axes[0] === name.replace("x", "xaxis"));
    const [x, y] = [name, name.replace("x", "y")].map((key) => event.range[key].toSorted((a, b) => a - b));
    if (panel >= 0) change({ box: { panel, x, y } });
  });
  plot.on("plotly_deselect", () => change({ box: null }));
}

// The models of the half violins whose middle is in a box, with values in its range; also those without a dot.
function inBox(run, { panel, x, y }) {
  const found = new Set();
  for (const v of drawnPanels(run)[panel]?.violins ?? [])
    for (const weights of [0, 1]) {
      const middle = v.x + (weights ? HALF_CENTER : -HALF_CENTER);
      if (!state.weights[weights] || v.cell < 0 || middle < x[0] || middle > x[1]) continue;
      const { start, count: n } = run.cells[v.cell];
      for (let i = start; i < start + n; i++) {
        const value = scoreOf(run, state.metric, weights, i, v.at);
        if (value >= y[0] && value <= y[1]) found.add(i);
      }
    }
  return found;
}

function pinLook(kind) {
  const full = kind === "pinned",
    by = state.by === "length";
  return {
    mode: "lines+markers",
    line: { width: full ? 1.6 : 0.8, color: css("pin"), dash: full ? "solid" : "dot" },
    marker: {
      symbol: full ? "diamond" : "diamond-open",
      size: by ? (full ? 6 : 4) : 11,
      color: css("pin"),
      line: { width: 1, color: css(full ? "paper" : "pin") },
    },
  };
}

// The pinned model is a full diamond, the models of the same draw are open ones.
function markPinned() {
  const traces = [],
    x = [],
    y = [],
    run = state.run,
    same = state.pinned === null ? [] : sameDraw(run, state.pinned);
  for (const panel of shown)
    for (const kind of ["same", "pinned"]) {
      const models =
        kind === "pinned" ? same.filter((i) => i === state.pinned) : same.filter((i) => i !== state.pinned);
      const of = models.flatMap((model) =>
        [0, 1]
          .filter((weights) => state.weights[weights])
          .flatMap((weights) => [
            ...panel.violins
              .filter((v) => v.column >= 0 && v.cell === run.cellOf[model])
              .map((v) => [placeOfDot(run, v, weights, model), scoreOf(run, state.metric, weights, model, v.at)]),
            [null, null],
          ]),
      );
      traces.push(panel[kind]);
      x.push(of.map((p) => p[0]));
      y.push(of.map((p) => p[1]));
    }
  if (traces.length) Plotly.restyle("violins", { x, y }, traces);
}

panels.push({ needs: ["pinned"], draw: markPinned });
