// Helpers of charts: axes, texts that fit, labels at the ends of lines, tables.

// plotly interprets some markup in texts; names must not be interpreted.
const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const FONT = "system-ui, -apple-system, Segoe UI, Roboto, sans-serif";
const pen = document.createElement("canvas").getContext("2d");

function widthOf(text, size = 11) {
  pen.font = `${size}px ${FONT}`;
  return pen.measureText(text).width;
}

// Labels of ticks, every n-th of them, so that they fit side by side into so many pixels.
function thinned(labels, pixels) {
  const widest = Math.max(...labels.map((text) => widthOf(text))) + 8;
  const every = Math.max(1, Math.ceil((widest * labels.length) / pixels));
  return labels.map((text, i) => (i % every ? "" : text));
}

// A title in lines of at most so many pixels, broken at spaces and signs, else anywhere.
function lines(text, pixels, size = 12) {
  const found = [""];
  for (const piece of text.split(/(?<=[ +,/-])/)) {
    for (const bit of widthOf(piece, size) > pixels ? piece : [piece]) {
      if (found.at(-1) && widthOf(found.at(-1) + bit, size) > pixels) found.push("");
      found[found.length - 1] += bit;
    }
  }
  return found;
}

const channels = (color) => [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16));
const mix = (a, b, share) => `rgb(${channels(a).map((x, i) => Math.round(x + share * (channels(b)[i] - x)))})`;
const variantColor = (run, variant) => run.colors[variant][state.theme];
const weightsColor = (run, variant, weights) => (weights ? css("bema") : variantColor(run, variant));

function axis(more = {}) {
  return {
    gridcolor: css("grid"),
    zeroline: false,
    linecolor: css("line"),
    tickcolor: css("line"),
    automargin: true,
    tickfont: { size: 11, color: css("soft") },
    ...more,
    title: { text: more.title ?? "", font: { size: 12 }, standoff: 8 },
  };
}

function layout(more = {}) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    hovermode: "closest",
    font: { family: FONT, size: 12, color: css("ink") },
    margin: { l: 8, r: 8, t: 12, b: 8 },
    dragmode: false,
    ...more,
  };
}

// Names beside the ends of lines, moved apart where they would overlap. `ends` are {x, y, text}.
function endLabels(ends, low, high, height) {
  const gap = (13 * (high - low)) / height,
    sorted = ends.filter(({ y }) => Number.isFinite(y)).sort((a, b) => a.y - b.y);
  const places = sorted.map(({ y }) => y);
  for (let round = 0; round < 100; round++)
    for (let i = 1; i < places.length; i++) {
      const overlap = gap - (places[i] - places[i - 1]);
      if (overlap <= 0) continue;
      places[i] += overlap / 2;
      places[i - 1] -= overlap / 2;
    }
  return sorted.map(({ x, text }, i) => ({
    x,
    y: places[i],
    xref: x === undefined ? "x domain" : "x",
    ...(x === undefined ? { x: 1 } : {}),
    xanchor: "left",
    xshift: 5,
    showarrow: false,
    text: plain(text),
    font: { size: 11, color: css("ink") },
  }));
}

// The least and the largest of the numbers among values.
function extent(values) {
  let low = Infinity,
    high = -Infinity;
  for (const x of values) {
    if (x === null || Number.isNaN(x)) continue;
    low = Math.min(low, x);
    high = Math.max(high, x);
  }
  return [low, high];
}

const cell = (text, className = "number") => el("td", { className }, text);

// The first `texts` columns are texts, the others numbers.
function table(heads, rows, texts = 1) {
  const head = el(
    "tr",
    {},
    heads.map((text, i) => el("th", { scope: "col", className: i < texts ? "" : "number" }, text)),
  );
  const body = rows.map((row) =>
    row instanceof Node
      ? row
      : el(
          "tr",
          {},
          row.map((text, i) => cell(text, i < texts ? "" : "number")),
        ),
  );
  return el("div", { className: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}

// A button that shows a table in place of a chart; `make` gives it when it is asked for.
function tableButton(plot, make) {
  let made = null;
  const button = el("button", { type: "button", className: "quiet screen", ariaPressed: "false" }, "Show as table");
  button.onclick = () => {
    const on = made === null;
    if (!on) made.remove();
    made = on ? make() : null;
    if (on) plot.after(made);
    plot.hidden = on;
    button.setAttribute("aria-pressed", String(on));
    button.textContent = on ? "Show as chart" : "Show as table";
  };
  button.refresh = () => {
    if (made === null) return;
    const next = make();
    made.replaceWith(next);
    made = next;
  };
  return button;
}

function chart(parent, caption, traces, more, makeTable, label) {
  const plot = el("div", { className: "plot" }),
    config = { displayModeBar: false, responsive: true, showTips: false };
  const head = el("figcaption", {}, el("span", {}, caption), tableButton(plot, makeTable));
  parent.append(el("figure", { "aria-label": label ?? caption }, head, plot));
  // drawn after its neighbors were added, since they share the width
  queueMicrotask(() => plot.isConnected && Plotly.newPlot(plot, traces, layout({ height: 240, ...more }), config));
  return plot;
}

// Empties a section of the page and gives it a heading and a note.
function section(id, title, ...note) {
  const box = $(id);
  box.replaceChildren(el("h2", {}, title), ...(note.length ? [el("p", { className: "note" }, ...note)] : []));
  return box;
}

function choice(label, options, value, pick) {
  const select = el(
    "select",
    { ariaLabel: label, onchange: () => pick(options[select.selectedIndex][0]) },
    options.map(([key, text]) => el("option", { selected: key === value }, text)),
  );
  return el("label", {}, label, select);
}
