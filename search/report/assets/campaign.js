// The report of a campaign: fills the page, draws its charts.

const { total } = data;
const filters = byId("filters");
const baselines = ["eager", "compile"].filter((name) => data.arms.some((arm) => arm.shares[name]));
const hours = (seconds) => (seconds < 100 ? `${seconds.toFixed(0)} s` : seconds < 3600 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`);
const reached = (each) => each.final ?? each.speedup;
const paid = ["evaluations", "device_s", "tokens", "dollars"].filter((unit) => total[unit] > 0);
const cost = (unit, value) => (!known(value) ? "-" : unit === "dollars" ? dollars(value) : value < 1000 ? String(Math.round(value * 10) / 10) : whole(value));
const inPercent = (value) => (100 * value).toFixed(1);
const share = (value) => (known(value) ? `${inPercent(value)} %` : "-");
const whole = (value) => Math.round(value).toLocaleString("en");

function head() {
  byId("title").textContent = document.title;
  byId("state").textContent = `${data.name}: ${data.ended ? "ended" : "running or stopped; only searches that have started are shown"}`;
  byId("facts").append(...terms([["command", element("code", {}, data.command ?? "not recorded")]]));
  const by = data.arms.length > 1 ? ", by any arm" : "", mean = total["geometric mean"];
  const unfit = total.problems - total.searched;
  byId("cards").append(
    card(String(total.problems), unfit ? `problems, ${unfit} not searched` : "problems"),
    card(`${total.solved} of ${total.searched}`, `faster than eager${by}`),
    card(times(mean.value), known(mean.low) ? `[${times(mean.low)}, ${times(mean.high)}] over eager, geometric mean of ${total.correct} correct` : "geometric mean"),
    card(whole(total.evaluations), "evaluations"),
    card(dollars(total.dollars), "for models"),
    card(hours(total.seconds), "running time"),
  );
}

/** Measures as rows, arms as columns: name, then for each arm what shows its value. */
function measureRows() {
  const names = Object.keys(data.arms.find((arm) => arm.against.eager.compiled)?.against.eager ?? {}).filter((name) => !name.startsWith("pass@"));
  const isTime = (name) => ["geometric mean", "median", "without overhead"].includes(name);
  const score = (value) => value.toFixed(3);
  const of = (arm, baseline, name) => arm.against[baseline][name];
  const group = (baseline) => names.filter((name) => baseline === "eager" || !["compiled", "correct", "without overhead", "roofline", "SOL score"].includes(name)).map((name) => ({
    group: `against ${baseline === "eager" ? "eager PyTorch" : "torch.compile"}`, name,
    values: data.arms.map((arm) => of(arm, baseline, name)), show: isTime(name) ? times : name === "SOL score" ? score : share,
    end: isTime(name) ? times : name === "SOL score" ? score : inPercent,
  }));
  const winners = [
    ["all held-out configurations right", (arm) => (arm.held_out ? { value: arm.held_out.pass_all / arm.held_out.winners } : null), share, inPercent],
    ["mean, listed configurations", (arm) => arm.held_out?.listed, times, times],
    ["mean, held-out configurations", (arm) => arm.held_out?.held_out, times, times],
    ["mean over the best public kernels", (arm) => arm.over_rivals, times, times],
  ].map(([name, value, show, end]) => ({ group: "winners", name, values: data.arms.map(value), show, end }))
    .filter((row) => row.values.some((each) => known(each?.value)));
  const costs = (key, words) => paid.map((unit) => ({
    group: words, name: UNIT_WORDS[unit], values: data.arms.map((arm) => ({ value: arm[key][unit] })), show: (value) => cost(unit, value),
  }));
  const counts = [["searched", "searched"], ["faster than eager", "solved"]].map(([name, key]) => ({
    group: "problems", name, values: data.arms.map((arm) => ({ value: arm[key] })), show: String,
  }));
  return [...counts, ...baselines.flatMap(group), ...winners, ...costs("spent", "spent"), ...costs("per_solved", "spent per problem faster than eager")];
}

function armsTable() {
  const rows = measureRows();
  const cell = (each, { show, end }) => element("td", {}, ...(!known(each?.value) ? ["-"] : [element("b", {}, show(each.value)),
    known(each.low) ? element("span", { class: "unsure" }, ` [${end(each.low)}, ${end(each.high)}]`) : null]));
  const title = (text) => element("tr", {}, element("th", { class: "words group", scope: "rowgroup", colspan: armNames.length + 1 }, text));
  byId("arms").replaceChildren(
    element("thead", {}, element("tr", {}, element("th", {}), ...armNames.map((name) => element("th", { scope: "col", class: "arm" }, name)))),
    ...[...Map.groupBy(rows, (row) => row.group)].map(([group, own]) => element("tbody", {}, title(group), ...own.map((row) =>
      element("tr", {}, element("th", { scope: "row", class: "words" }, row.name), ...row.values.map((each) => cell(each, row)))))),
  );
}

function saveArms() {
  const rows = measureRows().flatMap((row) => row.values.map((each, at) =>
    [row.group, row.name, armNames[at], each?.value, each?.low, each?.high]));
  saveTable(`${pageName}-arms`, ["group", "measure", "arm", "value", "low", "high"], rows);
}

/** The best so far over the evaluations of a search, from nothing to its best. */
function sparkline(each) {
  const [width, height] = [84, 22], steps = [[0, 0], ...each.slices];
  const most = Math.max(...steps.map(([, speedup]) => speedup)), last = steps.at(-1)[0] || 1;
  const x = (used) => 1 + (width - 2) * used / last, y = (speedup) => height - 2 - (height - 4) * speedup / (most || 1);
  const drawn = element("svg", { class: "spark", width, height, role: "img" });
  drawn.append(element("title", {}, each.slices.map(([used, speedup]) => `${used}: ${speedup ? times(speedup) : "none"}`).join(", ")));
  if (most > 1) drawn.append(element("path", { d: `M1 ${y(1)}H${width - 1}`, class: "eager" }));
  drawn.append(element("path", { d: `M${steps.map(([used, speedup]) => `${x(used).toFixed(1)} ${y(speedup).toFixed(1)}`).join("L")}` }));
  return drawn;
}

/** A name that may break into another line after a slash or an underscore. */
const breakable = (name) => name.split(/(?<=[/_])/).flatMap((part) => [part, element("wbr")]);
const has = (key) => data.searches.some((each) => known(each[key]));
const COLUMNS = [
  ["problem", (each) => breakable(each.problem), "words problem"],
  data.arms.length > 1 ? ["arm", (each) => each.arm, "words"] : null,
  ["speedup", (each) => (each.state === "not searched" ? "" : reached(each) ? element("b", {}, times(reached(each))) : "none correct")],
  has("final_compile") ? ["over compile", (each) => (known(each.final_compile) ? times(each.final_compile) : "")] : null,
  ["search", (each) => (each.speedup ? times(each.speedup) : "")],
  ["", (each) => (each.slices.length ? sparkline(each) : "")],
  has("roofline_share") ? ["of roofline", (each) => (known(each.roofline_share) ? percent(each.roofline_share) : "")] : null,
  data.searches.some((each) => each.held_out.length) ? ["held out", (each) => element(each.only_listed ? "b" : "span", { class: each.only_listed ? "worse" : null, title: heldOutList(each) }, heldOut(each))] : null,
  has("final_rival") ? ["over public", (each) => (known(each.final_rival) ? times(each.final_rival) : "")] : null,
  ["evaluations", (each) => String(each.evaluations)],
  ["slices", (each) => String(each.slices.length)],
  total.dollars ? ["cost", (each) => dollars(each.dollars)] : null,
  ["state", (each) => [each.state, each.why].filter(Boolean).join(": "), "words why"],
  has("report") ? ["report", (each) => (each.report ? element("a", { href: each.report, "aria-label": `report of ${each.problem}, ${each.arm}` }, "open") : "")] : null,
].filter(Boolean);
const CSV = ("problem arm weight state result why speedup final final_compile final_rival held_out_passed held_out_speedup " +
  "ceiling roofline_share evaluations seconds " +
  "device_s tokens dollars").split(" ");

function makeFilters() {
  const choice = (name, key) => {
    const values = [...new Set(data.searches.map((each) => each[key]))].filter(known);
    return values.length > 1 ? element("label", {}, name, element("select", { name: key },
      element("option", { value: "" }, "all"), ...values.map((value) => element("option", { value }, value)))) : null;
  };
  filters.append(...[choice("Arm", "arm"), choice("Result", "result"), choice("State", "state"),
    element("label", {}, "Name of the problem", element("input", { name: "text", type: "search", size: 16 })),
    element("button", { type: "reset" }, "Show all")].filter(Boolean));
  filters.addEventListener("input", searchTable);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => setTimeout(searchTable));
}

function searchesShown() {
  const wanted = Object.fromEntries(new FormData(filters));
  return data.searches.filter((each) => ["arm", "result", "state"].every((key) => !wanted[key] || each[key] === wanted[key]) &&
    each.problem.toLowerCase().includes(wanted.text.toLowerCase()));
}

function searchTable() {
  const shown = searchesShown();
  byId("count").textContent = `${shown.length} of ${data.searches.length} searches`;
  const cell = (tag, kind, content) => element(tag, { class: kind }, ...[content].flat());
  byId("searches").replaceChildren(
    element("thead", {}, element("tr", {}, ...COLUMNS.map(([name, , kind]) => cell("th", kind, name)))),
    element("tbody", {}, ...shown.map((each) => element("tr", {}, ...COLUMNS.map(([, of, kind]) => cell("td", kind, of(each)))))),
  );
}

const stepLine = (arm, points, hover) => ({
  type: "scatter", mode: "lines", name: armText(arm.name), x: points.map(([x]) => x), y: points.map(([, y]) => y),
  line: { shape: "hv", color: armColour(arm.name), dash: armDash(arm.name)[0], width: 2.5 }, hovertemplate: `${armText(arm.name)}: ${hover}<extra></extra>`,
});
const armsShown = () => data.arms.filter((arm) => !hiddenArms.has(arm.name));
const SHARES = { tickformat: ".0%", range: [-0.02, 1.04], title: { text: "" } };

/** The steps of fast_p, and its intervals where the measures have them. */
function fastPChart() {
  const baseline = byId("against").value, arms = armsShown().filter((arm) => arm.shares[baseline]);
  const all = data.arms.flatMap((arm) => (arm.shares[baseline] ?? []).map(([p]) => p)).filter((p) => p > 0);
  const axis = logAxis("p", [0.5, 3, ...all]), [low, high] = axis.range.map((each) => 10 ** each);
  const lines = arms.map((arm) => {
    const steps = arm.shares[baseline], inside = steps.map(([p, y]) => [Math.max(p, low), y]);
    return stepLine(arm, [...inside, [high, steps.at(-1)[1]]], "%{y:.0%} more than %{x:.3g}x");
  });
  const intervals = arms.map((arm) => {
    const own = Object.entries(arm.against[baseline]).filter(([name, each]) => /^fast_/.test(name) && name !== "fast_0" && known(each.low))
      .map(([name, each]) => ({ p: Number(name.slice(5)), ...each }));
    const apart = 1 + 0.02 * (armAt.get(arm.name) - (armNames.length - 1) / 2);  // of one arm's bars from another's
    return {
      type: "scatter", mode: "markers", x: own.map((each) => each.p * apart), y: own.map((each) => each.value), marker: { size: 6, color: armColour(arm.name) },
      error_y: {
        type: "data", symmetric: false, array: own.map((each) => each.high - each.value), arrayminus: own.map((each) => each.value - each.low),
        color: armColour(arm.name), thickness: 1.2, width: 3,
      },
      text: own.map((each) => `fast_${each.p}: ${figure(each, share)}`), hovertemplate: `${armText(arm.name)}<br>%{text}<extra></extra>`,
    };
  });
  chart("chart-fast-p", [...lines, ...intervals], {
    title: `fast_p: share of problems more than p times as fast as ${baseline === "eager" ? "eager" : "torch.compile"}`,
    showlegend: false, xaxis: axis, yaxis: SHARES,
    shapes: [{ type: "line", yref: "paper", x0: 1, x1: 1, y0: 0, y1: 1, line: { dash: "dot", color: colour("grey") } }],
  }, "fast-p");
}

function budgetChart() {
  chart("chart-budget", armsShown().map((arm) => stepLine(arm, arm.budget, "%{y:.0%} after %{x} evaluations")), {
    title: "fast_1 over the budget: share of problems faster than eager", showlegend: false,
    xaxis: { title: { text: "evaluations used by the arm" }, rangemode: "tozero" }, yaxis: SHARES,
  }, "budget");
}

const CHARTS = { "chart-fast-p": fastPChart, "chart-budget": budgetChart };
const legend = () => legendOf(redrawCharts);
head();
legend();
armsTable();
makeFilters();
searchTable();
byId("against").hidden = baselines.length < 2;
byId("against").addEventListener("input", () => drawn.has("chart-fast-p") && fastPChart());
byId("save-arms").addEventListener("click", saveArms);
byId("save-searches").addEventListener("click", () =>
  saveTable(`${pageName}-problems`, CSV, searchesShown().map((each) => CSV.map((key) => each[key]))));
watchSvgButtons();
document.body.dataset.ready = Math.round(performance.now());  // ms since the page was requested
chartsOnLoad(CHARTS, legend);
