// The report of a comparison: fills the page, draws its charts.

const form = byId("filters");
const unitShown = () => form.elements.unit.value;

const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

function head() {
  byId("title").textContent = document.title;
  const planned = data.planned ?? data.searches.length;
  byId("state").textContent = `${data.name}: ${data.searches.length} of ${planned} searches, ` +
    `${data.seeds.length} seeds, ${data.problems.join(", ")}`;
  byId("facts").append(...terms([["command", element("code", {}, data.command ?? "not recorded")],
    ...Object.entries(data.versions ?? {})]));
  const [first] = data.arms, real = data.differences.filter((each) => each.is_real);
  byId("cards").append(
    card(times(first.mean.value), `${first.name}, the highest mean over eager`),
    card(`${real.length} of ${data.differences.length}`, "pairs of arms differ significantly"),
    card(String(data.searches.length), `searches, ${data.searches.length / data.arms.length / data.problems.length} per arm and problem`),
  );
  for (const unit of data.units) form.elements.unit.append(element("option", { value: unit }, UNIT_WORDS[unit] ?? unit));
  form.elements.unit.value = data.unit;
}

function tables() {
  const paid = data.units.filter((unit) => data.arms.some((each) => each.spent[unit] > 0));
  const unseen = data.arms.some((each) => each.held_out) ? ["held out", "all of them right"] : [];
  const ofUnseen = (each) => (!unseen.length ? [] : each.held_out ? [figure(each.held_out.held_out), `${each.held_out.pass_all} of ${each.held_out.winners}`] : ["", ""]);
  table("arms", ["arm", "searches", "speedup over eager [95 %]", ...unseen, ...paid.map((unit) => `${UNIT_WORDS[unit]} at most`), "overrides"],
    data.arms.map((each) => [each.name, each.searches, figure(each.mean), ...ofUnseen(each), ...paid.map((unit) => amount(each.spent[unit])),
      each.overrides.join(" ")]), [0, 3 + unseen.length + paid.length]);
  byId("problems-frame").hidden = !data.by_problem.length;
  table("problems", ["problem", ...armNames], data.by_problem.map((each) =>
    [each.problem, ...armNames.map((name) => (each.arms[name] ? figure(each.arms[name]) : "-"))]), [0]);
  byId("languages-frame").hidden = !data.languages.length;
  table("languages", ["arm", "language", "kernels", "correct", "best [geometric mean]", "searches", "fastest in"], data.languages.map((each) =>
    [each.arm, each.language, each.kernels, each.correct, times(each.speedup), each.searches, each.won]), [0, 1]);
  const said = (each) => element("li", {}, each.sentence);
  const real = data.differences.filter((each) => each.is_real), noise = data.differences.filter((each) => !each.is_real);
  folded("real", `${real.length} of ${data.differences.length} pairs of arms differ significantly`, real.map(said));
  folded("noise", `${noise.length} ${noise.length === 1 ? "does" : "do"} not differ significantly`, noise.map(said));
}

/** A list under its summary; open if it is short. */
function folded(id, summary, items) {
  byId(id).hidden = !items.length;
  byId(id).open = items.length <= 10;
  byId(id).append(element("summary", {}, summary), element("ul", {}, ...items));
}

function matrix() {
  const over = new Map();
  for (const { first, second, ratio, beats, is_real, sentence } of data.differences) {
    over.set(`${armAt.get(first)},${armAt.get(second)}`, { ratio: ratio.value, beats: beats.value, is_real, sentence });
    over.set(`${armAt.get(second)},${armAt.get(first)}`, { ratio: 1 / ratio.value, beats: 1 - beats.value, is_real, sentence });
  }
  const most = Math.max(...[...over.values()].map((each) => Math.abs(Math.log(each.ratio))), 1e-9);
  const cell = (row, column) => {
    const found = over.get(`${row},${column}`);
    if (!found || !known(found.ratio)) return element("td", {}, "");
    const made = element("td", { title: found.sentence, class: found.is_real ? null : "unsure" },
      element("b", {}, times(found.ratio)), element("br"), percent(found.beats));
    const share = Math.round(8 + 40 * Math.abs(Math.log(found.ratio)) / most);
    if (found.is_real) made.style.background = `color-mix(in srgb, var(--${found.ratio > 1 ? "better" : "worse"}) ${share}%, transparent)`;
    return made;
  };
  byId("matrix").replaceChildren(
    element("thead", {}, element("tr", {}, element("th", {}), ...armNames.map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...armNames.map((name, row) => element("tr", {},
      element("th", { scope: "row", class: "words" }, name), ...armNames.map((_, column) => cell(row, column))))),
  );
}

const SEARCHED = ["problem", "arm", "seed", "reason", "final", "held_out_passed", "held_out_speedup", "evaluations", "device_s", "tokens", "dollars"];
function searchTable() {
  if (!byId("searches-frame").open || byId("searches").rows.length) return;
  const units = data.units, linked = data.searches.some((each) => each.report), unseen = data.searches.some((each) => each.held_out.length);
  const columns = ["problem", "arm", "seed", "ended because of", "speedup", ...(unseen ? ["held out"] : []), ...units.map((unit) => UNIT_WORDS[unit]), ...(linked ? ["report"] : [])];
  table("searches", columns, data.searches.map((each) => [each.problem, each.arm, each.seed, each.reason, times(each.final), ...(unseen ? [heldOut(each)] : []),
    ...units.map((unit) => amount(each[unit])), ...(linked ? [""] : [])]), [0, 1, 3]);
  if (linked) {
    data.searches.forEach((each, at) => {
      if (each.report) byId("searches").tBodies[0].rows[at].lastChild.append(element("a", { href: each.report }, "open"));
    });
  }
}

const curveId = (problem) => `chart-curve-${data.problems.indexOf(problem)}`;
const curvesShown = () => data.curves.filter((each) => each.unit === unitShown());

function curveChart(problem) {
  const shade = Math.round(Math.min(56, Math.max(14, 160 / (armNames.length + 1)))).toString(16).padStart(2, "0");
  const own = curvesShown().filter((each) => each.problem === problem && !hiddenArms.has(each.arm));
  const bands = form.elements.bands.checked ? own.map((each) => {
    const between = (values) => values.filter((_, at) => known(each.low[at])), x = between(each.amounts);
    return {
      type: "scatter", mode: "lines", x: [...x, ...x.toReversed()], y: [...between(each.high), ...between(each.low).toReversed()],
      fill: "toself", fillcolor: `${armColour(each.arm)}${shade}`, line: { width: 0 }, hoverinfo: "skip",
    };
  }) : [];
  const lines = own.map((each) => ({
    type: "scatter", mode: "lines", name: armText(each.arm), x: each.amounts, y: each.median,
    line: { color: armColour(each.arm), dash: armDash(each.arm)[0], width: 2.5 }, customdata: each.low.map((low, at) => [low, each.high[at]]),
    hovertemplate: `${armText(each.arm)}: %{y:.3g}x, quartiles %{customdata[0]:.3g} to %{customdata[1]:.3g}<extra></extra>`,
  }));
  const values = data.curves.filter((each) => each.problem === problem).flatMap((each) => [...each.low, ...each.high]);
  chart(curveId(problem), [...bands, ...lines], {
    title: `${problem}: speedup over eager of the best so far`, showlegend: false, hovermode: "x unified",
    xaxis: { title: { text: UNIT_WORDS[unitShown()] }, rangemode: "tozero", unifiedhovertitle: { text: `%{x:.4~g} ${UNIT_WORDS[unitShown()]}` } },
    yaxis: logAxis("", values),
  }, `curve-${data.problems.indexOf(problem)}`);
}

const redrawCurves = () => data.problems.forEach((problem) => drawn.has(curveId(problem)) && curveChart(problem));

/** Points with their intervals, one below the other, the first on top; what lacks an end has no bar there. */
function forest(rows) {
  const shown = rows.toReversed();
  const reach = (each, end) => (known(each.of[end]) ? Math.abs(each.of[end] - each.of.value) : 0);
  return {
    type: "scatter", mode: "markers", orientation: "h", y: shown.map((each) => each.label), x: shown.map((each) => each.of.value),
    error_x: {
      type: "data", symmetric: false, array: shown.map((each) => reach(each, "high")), arrayminus: shown.map((each) => reach(each, "low")),
      color: colour("soft"), thickness: 1.5,
    },
    marker: { size: 9, color: shown.map((each) => each.colour), symbol: shown.map((each) => each.symbol ?? "circle") },
    text: shown.map((each) => each.text), hovertemplate: "%{text}<extra></extra>",
  };
}

const ends = (rows) => rows.flatMap((each) => [each.of.value, each.of.low, each.of.high]);
const heightFor = (id, rows, each) => { byId(id).style.height = `${70 + each * rows}px`; };

function armsChart() {
  const rows = data.arms.map((each) => ({
    of: each.mean, label: armText(each.name), colour: armColour(each.name), text: `${armText(each.name)}: ${figure(each.mean)}`,
  }));
  heightFor("chart-arms", rows.length, 26);
  chart("chart-arms", [forest(rows)], {
    title: "Speedup over eager: geometric mean and 95 % interval", showlegend: false,
    xaxis: logAxis("", ends(rows)), yaxis: { ticksuffix: "  " },
  }, "arms");
}

function differencesChart() {
  const turned = ({ value, low, high }) => ({ value: 1 / value, low: known(high) ? 1 / high : null, high: low ? 1 / low : null });
  const rows = data.differences.filter((each) => each.ratio.value).map((each) => {
    const back = each.ratio.value < 1;
    const [faster, slower] = (back ? [each.second, each.first] : [each.first, each.second]).map(armText);
    const of = back ? turned(each.ratio) : each.ratio, beats = back ? 1 - each.beats.value : each.beats.value;
    return {
      of, label: `${faster}${narrow() ? "<br>" : " "}over ${slower}`, colour: each.is_real ? colour("better") : colour("grey"),
      symbol: each.is_real ? "circle" : "circle-open",
      text: `${faster} over ${slower}: ${figure(of)}<br>faster in ${percent(beats)} of ${each.pairs} pairs, p ${digits(each.p, 2)}` +
        (each.contrasts > 1 ? `; ${digits(each.p_corrected, 2)} corrected for ${each.contrasts} contrasts` : "") +
        `<br>${each.is_real ? "significant" : "not significant"}`,
    };
  }).sort((a, b) => b.of.value - a.of.value);
  heightFor("chart-differences", rows.length, narrow() ? 36 : 24);
  chart("chart-differences", [forest(rows)], {
    title: "How many times as fast, with the 95 % interval (open circle: not significant)", showlegend: false,
    xaxis: logAxis("", ends(rows)), yaxis: { ticksuffix: "  ", tickfont: { size: narrow() ? 10 : 12 } },
    shapes: [{ type: "line", yref: "paper", x0: 1, x1: 1, y0: 0, y1: 1, line: { dash: "dot", color: colour("grey") } }],
  }, "differences");
}

function statusChart() {
  const statuses = [...new Set(data.arms.flatMap((each) => Object.keys(each.statuses)))];
  const rows = data.arms.toReversed(), alike = [];
  const total = (each) => Object.values(each.statuses).reduce((sum, count) => sum + count, 0);
  const traces = statuses.map((status) => {
    const fill = statusColour(status), again = alike.filter((each) => each === fill).length;
    alike.push(fill);
    return {
      type: "bar", orientation: "h", name: status.replaceAll("_", " "), y: rows.map((each) => armText(each.name)),
      x: rows.map((each) => (each.statuses[status] ?? 0) / (total(each) || 1)), customdata: rows.map((each) => each.statuses[status] ?? 0),
      marker: { color: fill, pattern: { shape: ["", "/", "x", "."][again % 4], fillmode: "overlay", fgcolor: colour("back") } },
      hovertemplate: `%{y}: %{customdata} ${status}, %{x:.0%}<extra></extra>`,
    };
  });
  byId("chart-statuses").style.height = `${120 + 26 * rows.length}px`;
  chart("chart-statuses", traces, {
    title: "Shares of the evaluations", barmode: "stack", xaxis: { tickformat: ".0%" }, yaxis: { ticksuffix: "  " },
  }, "statuses");
}

const legend = () => legendOf(redrawCurves);
head();
legend();
tables();
matrix();
byId("curves").append(...data.problems.map((problem) =>
  element("div", {}, element("div", { class: "chart tall", id: curveId(problem) }))));
byId("statuses").hidden = !data.arms.some((each) => Object.keys(each.statuses).length);
byId("searches-frame").addEventListener("toggle", searchTable);
form.addEventListener("input", redrawCurves);
form.addEventListener("submit", (event) => event.preventDefault());
byId("save-searches").addEventListener("click", () =>
  saveTable(`${pageName}-searches`, SEARCHED, data.searches.map((each) => SEARCHED.map((key) => each[key]))));
byId("save-curves").addEventListener("click", () => saveTable(`${pageName}-curves`,
  ["arm", "problem", unitShown(), "low", "median", "high"], curvesShown().flatMap((each) =>
    each.amounts.map((at, place) => [each.arm, each.problem, at, each.low[place], each.median[place], each.high[place]]))));
watchSvgButtons({ curves: () => data.problems.map(curveId) });
document.body.dataset.ready = Math.round(performance.now());  // ms since the page was requested
chartsOnLoad({
  ...Object.fromEntries(data.problems.map((problem) => [curveId(problem), () => curveChart(problem)])),
  "chart-arms": armsChart, "chart-differences": differencesChart,
  ...(byId("statuses").hidden ? {} : { "chart-statuses": statusChart }),
}, legend);
