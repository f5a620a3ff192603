// The profile of a model: fills the page, draws its charts.

const filters = byId("filters");
const SHOWN_OPERATORS = 16;
const tenth = (share) => (known(share) ? `${(100 * share).toFixed(1)} %` : "-");
const KIND_COLOURS = { contraction: "arm-0", light: "arm-1", chain: "arm-2", creation: "arm-4", view: "arm-6", other: "arm-5" };
const calls = (count) => (count === 1 ? "1 call" : `${count} calls`);
const withInterval = (each) => `${times(each.speedup)} [${each.low.toFixed(2)}, ${each.high.toFixed(2)}]`;
const kindColour = (kind) => colour(KIND_COLOURS[kind] ?? "grey");

const several = data.shapes.length > 1 ? data.shapes : [];  // input shapes

function head() {
  byId("title").textContent = document.title;
  byId("state").textContent = `${data.backward ? "forward and backward" : "forward"}, ${data.dtype}, on ${data.device_name}`;
  byId("facts").append(...terms([["model", data.model], ["torch", data.torch], ["traced iterations", String(data.iterations)],
    ...several.map((each) => ["shape", `${each.name}: ${milliseconds(each.wall_ms)} ms, ${tenth(each.weight)} of the calls`]),
    ...data.notes.map((note) => ["note", note])]));
  const waits = data.device === "cpu" ? "outside operators" : "device idle";
  byId("cards").append(
    card(`${milliseconds(data.wall_ms)} ms`, several.length ? "per iteration on average" : "per iteration"),
    card(`${milliseconds(data.device_ms)} ms`, data.device === "cpu" ? "of it in operators" : "on the device"),
    ...(data.kernels ? [card(String(data.kernels), "launches")] : []),
    card(tenth(data.idle_share), data.launch_bound ? `${waits}: launch-bound` : waits),
    ...(data.targets.length ? [card(times(data.targets[0].speedup), `end-to-end speedup at most, from ${shorten(data.targets[0].name, 60)}`)] : []),
  );
  byId("advice").textContent = data.advice.join(" ");
}

/** The model with kernels, once it is verified. */
function outcome() {
  const found = data.outcome;
  if (!found) return;
  byId("outcome").hidden = false;
  const used = found.problems.filter((each) => each.used), [own] = found.ways.filter((each) => each.name === "with the kernels");
  byId("outcome-cards").append(
    ...(own ? [card(times(own.speedup), `over eager [${own.low.toFixed(2)}, ${own.high.toFixed(2)}]`)] : []),
    card(found.passes ? "same" : "DIFFERENT", `${data.backward ? "outputs, gradients and losses" : "outputs"}, compared with the original`),
    card(String(used.length), used.length === 1 ? "kernel installed" : "kernels installed"),
    card(tenth(used.reduce((sum, each) => sum + each.share, 0)), "of the original time replaced"),
  );
  const failed = Object.entries(found.failed).map(([name, why]) => `${name} failed: ${why}`);
  byId("training-part").hidden = !found.curves;
  if (data.backward) byId("timed").textContent = "a step of training (forward, backward and the optimizer's step)";
  byId("said").append(...[...found.said, ...failed, ...found.growth, ...found.memory].map((line) => element("li", {}, line)));
  shapesTable(found.shapes);
  const kernel = (each) => (each.kernel ? withInterval(each.kernel) : "");
  const state = (each) => (each.used ? `in the model, ${calls(each.used)}` : each.left_out ? `removed: ${each.left_out}` : each.kernel ? "another kernel is better there" : "");
  table("problems", ["problem", "operators", "call sites", "share", "roofline", "kernel", "from", ""],
    found.problems.map((each) => [each.name, shorten(each.target, 80), each.sites.join(", "), tenth(each.share), times(each.ceiling),
      kernel(each), each.kernel?.origin ?? "", state(each)]), [0, 1, 2, 6, 7]);
  const others = Object.entries(found.no_problems);
  byId("no-problems").hidden = !others.length;
  byId("no-problems").querySelector("ul").append(...others.map(([name, why]) => element("li", {}, `${name}: ${why}`)));
}

/** A row for each input shape, a column for each way of running the model. */
function shapesTable(shapes) {
  byId("shapes-part").hidden = shapes.length < 2 || !shapes[0].ways.length;
  if (byId("shapes-part").hidden) return;
  const cell = (each) => `${milliseconds(each.ms)} ms${each.eager ? "" : `, ${withInterval(each)}`}`;
  table("shapes", ["shape", "share of the calls", ...shapes[0].ways.map((each) => each.name)],
    shapes.map((each) => [each.name, tenth(each.weight), ...each.ways.map(cell)]), [0]);
}

function waysChart() {
  const ways = data.outcome.ways, text = (each) => `${milliseconds(each.ms)} ms${each.eager ? "" : `, ${withInterval(each)}`}`;
  byId("chart-ways").style.height = `${6 + 2 * ways.length}rem`;
  chart("chart-ways", [{
    type: "bar", orientation: "h", x: ways.map((each) => each.ms), y: ways.map((each) => escaped(each.name)), text: ways.map(text), textposition: "auto",
    marker: { color: ways.map((each) => colour(each.name.startsWith("with the kernels") ? "string" : "grey")) }, hovertemplate: "%{y}<br>%{text}<extra></extra>",
  }], { title: `One ${data.backward ? "step of training" : "forward pass"}${several.length ? ", on average" : ""}`, showlegend: false, xaxis: { title: { text: "ms" }, rangemode: "tozero" }, yaxis: { autorange: "reversed" } }, "ways");
}

/** A line over the steps of training. */
const lossLine = (name, y, line) => ({ type: "scatter", mode: "lines", name, y, x: y.map((_, step) => step + 1), line, hovertemplate: `step %{x}: %{y:.6g}<extra>${name}</extra>` });

function lossesChart() {
  const { original, with_kernels: own, optimizer, learning_rate: rate } = data.outcome.curves;
  chart("chart-losses", [lossLine("original", original, { color: colour("grey"), width: 4 }),
    lossLine("with the kernels", own, { color: colour("string"), width: 2, dash: "dash" })],
  { title: `Loss, trained with ${optimizer} at ${rate}`, xaxis: { title: { text: "step" } } }, "losses");
}

function differencesChart() {
  const { differences, spread, allowed } = data.outcome.curves, above = (values) => values.map((each) => each || null);  // of a log axis
  chart("chart-differences", [lossLine("allowed", allowed, { color: colour("grey"), width: 2 }), lossLine("rounding alone", above(spread), { color: colour("arm-1"), width: 2 }),
    lossLine("with the kernels", above(differences), { color: colour("string"), width: 2 })],
  { title: "Distance of the loss from the original's", xaxis: { title: { text: "step" } }, yaxis: { type: "log", exponentformat: "power" } }, "differences");
}

/** A bar for each operator, the slowest on top, then one for the rest and one for idle time. */
function operatorsChart() {
  const all = data.operators.filter((each) => each.time_ms > 0), shown = all.slice(0, SHOWN_OPERATORS);
  const rest = all.slice(SHOWN_OPERATORS).reduce((sum, each) => sum + each.time_ms, 0);
  const bars = shown.map((each) => ({ ...each, text: calls(each.calls) }));
  if (rest) bars.push({ name: `${all.length - shown.length} others`, time_ms: rest, kind: "other", text: "" });
  if (data.other_ms) bars.push({ name: "no operator", time_ms: data.other_ms, kind: "other", text: "" });
  if (data.idle_share) bars.push({
    name: data.device === "cpu" ? "outside operators" : "idle", time_ms: data.idle_share * data.wall_ms, kind: "idle", text: "",
  });
  const kinds = [...new Set(bars.map((each) => each.kind))];
  byId("chart-operators").style.height = `${Math.max(12, 5 + 1.35 * bars.length)}rem`;
  chart("chart-operators", kinds.map((kind) => {
    const own = bars.filter((each) => each.kind === kind);
    return {
      type: "bar", orientation: "h", name: kind, x: own.map((each) => each.time_ms), y: own.map((each) => escaped(shorten(each.name, narrow() ? 20 : 48))),
      marker: { color: kindColour(kind) }, text: own.map((each) => tenth(each.time_ms / data.total_ms)), textposition: "auto",
      customdata: own.map((each) => each.text), hovertemplate: "%{y}<br>%{x:.3g} ms, %{text}<br>%{customdata}<extra></extra>",
    };
  }), {
    title: "By operator", barmode: "stack", xaxis: { title: { text: "ms of an iteration" } },
    yaxis: { autorange: "reversed", categoryorder: "array", categoryarray: bars.map((each) => escaped(shorten(each.name, narrow() ? 20 : 48))) },
  }, "operators");
}

/** The module tree from the model down; a box is as wide as its time. */
function modulesChart() {
  const all = data.modules;
  chart("chart-modules", [{
    type: "icicle", branchvalues: "remainder", ids: all.map((each) => each.id), parents: all.map((each) => each.parent),
    labels: all.map((each) => escaped(shorten(each.name, 40))), values: all.map((each) => (each.operator ? each.time_ms : 0)), maxdepth: narrow() ? 4 : 7, sort: false,
    tiling: { orientation: "v" }, marker: { line: { width: 1, color: colour("back") } }, textinfo: "label+percent root",
    text: all.map((each) => calls(each.calls)), hovertemplate: "%{id}<br>%{value:.3g} ms, %{percentRoot:.1%}<br>%{text}<extra></extra>",
    pathbar: { visible: false },
  }], { title: "By module", margin: { l: 4, r: 4, t: 6, b: 6 } }, "modules");
}

function makeFilters() {
  const kinds = [...new Set(data.targets.map((each) => each.kind))];
  filters.append(
    element("label", {}, "Kind", element("select", { name: "kind" }, element("option", { value: "" }, "all"),
      ...kinds.map((value) => element("option", { value }, value)))),
    element("label", {}, "Name or call site", element("input", { name: "text", type: "search", size: 20 })),
    element("button", { type: "reset" }, "Show all"),
  );
  filters.addEventListener("input", targetsTable);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => setTimeout(targetsTable));
}

function targetsShown() {
  const { kind, text } = Object.fromEntries(new FormData(filters)), wanted = text.toLowerCase();
  return data.targets.filter((each) => (!kind || each.kind === kind) && `${each.name} ${each.sites.join(" ")}`.toLowerCase().includes(wanted));
}

/** A number with a bar behind it that shows a share. */
const bar = (share, text) => element("span", { style: `display:block;background:linear-gradient(90deg,var(--slow) ${(100 * share).toFixed(1)}%,transparent 0)` }, text);
const casesOf = (each) => element("details", {}, element("summary", {}, each.name), element("pre", { class: "wrap" },
  each.cases.map(([texts, count, ms, shape]) => `${calls(count)}, ${milliseconds(ms)} ms${several.length ? ` at ${several[shape].name}` : ""}\n${texts.map((text) => `  ${text || "(arguments not expressible)"}`).join("\n")}`).join("\n")));
const COLUMNS = [
  ["target", (each) => casesOf(each), "words problem"],
  ["kind", (each) => each.kind, "words"],
  ["calls", (each) => String(each.calls)],
  ["share", (each) => bar(each.share, tenth(each.share))],
  ["ms", (each) => milliseconds(each.time_ms)],
  ["roofline", (each) => `${times(each.roofline_factor)} ${each.bound}`],
  ["library", (each) => (each.library ? `${times(each.library[1])} ${each.library[0]} (${each.library[2]})` : ""), "words"],
  ["model", (each) => element("b", {}, times(each.speedup))],
  ["call sites", (each) => each.sites.slice(0, 4).join(", ") + (each.sites.length > 4 ? ` and ${each.sites.length - 4} more` : ""), "words why"],
];
const CSV = "name kind calls share time_ms roofline_factor bound speedup speedup_by_library".split(" ");

function targetsTable() {
  const shown = targetsShown(), cell = (tag, kind, content) => element(tag, { class: kind }, content);
  byId("count").textContent = `${shown.length} of ${data.targets.length} targets${data.others ? `, and ${data.others} in profile.json` : ""}`;
  byId("targets").replaceChildren(
    element("thead", {}, element("tr", {}, ...COLUMNS.map(([name, , kind]) => cell("th", kind, name)))),
    element("tbody", {}, ...shown.map((each) => element("tr", {}, ...COLUMNS.map(([, of, kind]) => cell("td", kind, of(each)))))),
  );
}

head();
outcome();
makeFilters();
targetsTable();
byId("save-targets").addEventListener("click", () => saveTable(`${pageName}-targets`, CSV, targetsShown().map((each) => CSV.map((key) => each[key]))));
watchSvgButtons();
document.body.dataset.ready = Math.round(performance.now());  // ms since the page was requested
chartsOnLoad({ ...(data.outcome?.ways.length ? { "chart-ways": waysChart } : {}),
  ...(data.outcome?.curves ? { "chart-losses": lossesChart, "chart-differences": differencesChart } : {}), "chart-operators": operatorsChart, "chart-modules": modulesChart });
