// Filters, and a table of the variants that pass them.

const filters = byId("filters");
const LISTED = [
  ["variant", (each) => shortId(each.id)], ["round", (each) => each.round], ["status", (each) => each.status],
  ["ms", (each) => milliseconds(each.kernel_ms)], ["speedup", (each) => times(each.speedup)],
  ["95 % interval", interval], ["category", (each) => each.category], ["model", (each) => each.model],
  ...(isProfiled ? [["bottleneck", (each) => bottleneckOf(each.kernel)]] : []),
  ["idea", (each) => shorten(ideas.get(each.idea).text, 160)],
];
const WORDS = new Set(["variant", "status", "category", "model", "bottleneck", "idea"]);
const CSV = ("id idea number round category proposer model parent repairs language status kernel_ms eager_ms compile_ms " +
  "speedup speedup_low speedup_high speedup_vs_compile roofline_share rule cause device_s build_s tokens dollars").split(" ");

function makeFilters() {
  const options = (key) => [...new Set(data.variants.map((each) => each[key]))].filter((each) => each !== "");
  const choice = (name, key, values) => values.length > 1 ? element("label", {}, name,
    element("select", { name: key }, element("option", { value: "" }, "all"),
      ...values.map((value) => element("option", { value }, String(value))))) : null;
  filters.append(...[
    choice("Category", "category", options("category")),
    choice("Status", "status", options("status")),
    choice("Model", "model", options("model")),
    choice("Round", "round", options("round").sort((a, b) => a - b)),
    element("label", {}, "Speedup at least", element("input", { name: "least", type: "number", min: 0, step: 0.1, size: 5 })),
    element("label", {}, "Text of the idea", element("input", { name: "text", type: "search", size: 16 })),
    element("button", { type: "reset" }, "Show all"),
  ].filter(Boolean));
  filters.addEventListener("input", filter);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => setTimeout(filter));
}

function filter() {
  const wanted = Object.fromEntries(new FormData(filters));
  const equal = ["category", "status", "model", "round"].filter((key) => wanted[key]);
  const text = wanted.text.toLowerCase();
  const left = data.variants.filter((each) =>
    equal.every((key) => String(each[key]) === wanted[key]) &&
    (!wanted.least || each.speedup >= Number(wanted.least)) &&
    (!text || ideas.get(each.idea).text.toLowerCase().includes(text)));
  shown = new Set(left.map((each) => each.id));
  markShown();
  list();
}

const listed = () => data.variants.filter((each) => shown.has(each.id));

function list() {
  byId("list-count").textContent = `${shown.size} of ${variants.size} variants`;
  if (!byId("list-frame").open) return;
  const cell = (tag, name, content) => element(tag, { class: WORDS.has(name) ? "words" : null }, content);
  const rows = listed().sort((a, b) => (b.speedup ?? 0) - (a.speedup ?? 0)).map((variant) =>
    element("tr", {}, ...LISTED.map(([name, value], at) => cell("td", name,
      at ? String(value(variant)) : linkTo({ id: variant.id, kind: "variant" }, value(variant))))));
  byId("list").replaceChildren(
    element("thead", {}, element("tr", {}, ...LISTED.map(([name]) => cell("th", name, name)))),
    element("tbody", {}, ...rows),
  );
}

function saveCsv() {
  const rows = listed().map((each) => [...CSV.map((key) => each[key]), ideas.get(each.idea).text]);
  saveTable(pageName, [...CSV, "text"], rows);
}

function saveSvg() {
  const drawn = stage.getBBox();
  const copy = svg.cloneNode(true);
  const box = [drawn.x - 12, drawn.y - 12, drawn.width + 24, drawn.height + 24];
  copy.firstChild.removeAttribute("transform");
  copy.prepend(element("rect", { x: box[0], y: box[1], width: box[2], height: box[3], fill: colour("panel") }));
  for (const name of ["id", "tabindex", "class", "role"]) copy.removeAttribute(name);
  for (const [name, value] of [["viewBox", box.join(" ")], ["width", box[2]], ["height", box[3]]]) copy.setAttribute(name, value);
  save(`${pageName}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(copy));
}
