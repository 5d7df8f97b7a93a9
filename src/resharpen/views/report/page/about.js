// Diverged models, and provenance.

function drawDiverged() {
  const run = state.run,
    at = part(run, "diverged"),
    models = [...at.keys()].filter((i) => at[i] >= 0),
    title = "Diverged models";
  if (!models.length) return section("diverged", title, `None of ${many(run.models, "model")}.`);
  const without = models.filter((i) => Number.isNaN(scoreOf(run, run.metric, 0, i, "all"))).length;
  const select = () => {
    change({ ...NOTHING_SELECTED, only: "diverged" });
    $("look").scrollIntoView();
  };
  const box = section(
    "diverged",
    title,
    `${count(models.length)} of ${many(run.models, "model")}; ${count(without)} before their first checkpoint: ` +
      "they have no score, are left out of densities and count as worst in statistics. ",
    el("button", { type: "button", className: "screen", onclick: select }, "Select them"),
  );
  const rows = run.settings.map((setting, s) => [
    settingLabel(run, setting),
    ...run.variants.map((_, v) => {
      const found = run.cells[cellIndex(run, s, v)];
      return found ? `${found.diverged} of ${count(found.count)}` : "";
    }),
  ]);
  box.append(table(["setting", ...run.variants], rows));
}

function drawAbout() {
  const { about, insideSaid, made } = state.run,
    box = section("about", "Provenance", "To repeat this run:");
  box.append(el("pre", {}, about.command));
  if (about.continue)
    box.append(el("p", { className: "note" }, "It is not finished; continue with:"), el("pre", {}, about.continue));
  if (about.cut?.length)
    box.append(
      el("h3", {}, "Differences from the full protocol"),
      table(
        ["", "here", "in full"],
        about.cut.map((row) => [row.what, row.here, row.paper]),
      ),
    );
  else if (about.cut) box.append(el("p", {}, "This is the full protocol."));
  box.append(
    el(
      "dl",
      { className: "facts" },
      Object.entries(about.facts).flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]),
    ),
  );
  if (about.origins.length) {
    const heads = Object.keys(about.origins[0]),
      rows = about.origins.map((origin) => heads.map((name) => origin[name]));
    box.append(el("h3", {}, "Machines and versions"), table(heads, rows, heads.length));
  }
  if (insideSaid) box.append(el("p", { className: "note" }, insideSaid));
  const spec = el("pre", {}, JSON.stringify(about.spec, null, 1));
  box.append(el("details", {}, el("summary", {}, el("span", { className: "text" }, "The whole spec")), spec));
  $("footer").textContent = `Drawn with ${made}.`;
}

// What was trained, in one line.
function lead(run) {
  const titles = [...new Set(run.settings.map((setting) => setting.title))],
    so = run.models === run.asked ? "" : ` of ${count(run.asked)} so far`,
    named = titles.length < 4 ? titles.join(", ") : `${titles.length} tasks, ${titles[0]} to ${titles.at(-1)}`,
    steps = run.about.facts.steps.split(" of ")[0];
  return `${run.name}: ${named}. ${many(run.models, "model")}${so}, ${steps} steps each; ${run.about.time}.`;
}

panels.push({ needs: ["run"], draw: drawDiverged }, { needs: ["run"], draw: drawAbout });
