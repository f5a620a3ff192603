// Plotly charts for all pages. Outside texts are escaped, because Plotly interprets some tags.

const escaped = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const wrapped = (text, most = 46) => escaped(text).replace(new RegExp(`(.{1,${most}})(\\s+|$)`, "g"), "$1<br>").replace(/<br>$/, "");
const narrow = () => innerWidth < 600;

function chart(id, traces, layout, name) {
  const text = colour("text"), grid = { gridcolor: colour("grid"), zerolinecolor: colour("line"), automargin: true };
  const box = byId(id);
  if (!box.previousElementSibling?.matches("h3.of-chart")) box.before(element("h3", { class: "of-chart" }));
  box.previousElementSibling.textContent = layout.title;
  Plotly.react(box, traces, {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", colorway: palette(),
    font: { color: text, size: 12, family: "system-ui, sans-serif" },
    margin: { l: 48, r: 12, t: 10, b: layout.showlegend === false || traces.length === 1 ? 44 : 80 }, hoverlabel: { align: "left" },
    legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", font: { size: 11 } }, dragmode: narrow() ? false : "zoom",
    ...layout,
    title: undefined,
    xaxis: { ...grid, ...layout.xaxis }, yaxis: { ...grid, ...layout.yaxis },
    ...(layout.yaxis2 ? { yaxis2: { ...grid, showgrid: false, ...layout.yaxis2 } } : {}),
  }, {
    responsive: true, displaylogo: false, displayModeBar: narrow() ? false : "hover", scrollZoom: false,
    toImageButtonOptions: { format: "svg", filename: `${pageName}-${name}` },
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  });
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", layout.title);
  return box;
}

const palette = () => ["accent", "path", "string", "time", "wrong", "grey"].map(colour);
const STATUS_COLOURS = {
  correct: "string",
  compile_error: "build", runtime_error: "build", crashed: "build", incorrect: "wrong", timeout: "time", rejected: "time",
};
const statusColour = (status) => colour(STATUS_COLOURS[status] ?? "grey");

/** Powers of ten and some multiples of them, more when the range is small. */
function logAxis(title, values) {
  const all = values.filter((each) => known(each) && each > 0);
  const [low, high] = [Math.min(...all, 1), Math.max(...all, 1)];
  const steps = high / low > 5 ? [1, 2, 5] : high / low > 2 ? [1, 1.5, 2, 3, 5, 7] : [1, 1.1, 1.2, 1.3, 1.5, 1.7, 2, 3, 4, 5, 6, 7, 8, 9];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1; power++) {
    ticks.push(...steps.map((each) => Number((each * 10 ** power).toPrecision(3))));
  }
  const range = [Math.log10(low) - 0.08, Math.log10(high) + 0.08];
  return { type: "log", title: { text: title }, tickvals: ticks, ticktext: ticks.map((each) => `${each}x`), range };
}

const drawn = new Set();
let drawings = {};  // the function that draws each box, by its id

function drawChart(id) {
  drawn.add(id);
  drawings[id]();
}

const redrawCharts = () => drawn.forEach((id) => drawings[id]());
const drawAllCharts = () => Object.keys(drawings).filter((id) => !drawn.has(id)).forEach(drawChart);

/** Draws each chart when it comes into view. Plotly, which takes a second to start, starts now, after the page has
 *  loaded. The page's policy allows its script by its hash. */
function watchCharts(all) {
  drawings = all;
  document.head.append(element("script", {}, byId("plotly").textContent));
  const watch = new IntersectionObserver((found) => {
    for (const each of found.filter((each) => each.isIntersecting && !drawn.has(each.target.id))) drawChart(each.target.id);
    document.body.dataset.charts ??= Math.round(performance.now());
  }, { rootMargin: "200px" });
  for (const id of Object.keys(drawings)) watch.observe(byId(id));
}

function saveSvgs(ids) {
  for (const id of ids) {
    if (!drawn.has(id)) drawChart(id);
    Plotly.downloadImage(byId(id), { format: "svg", filename: `${pageName}-${id.replace("chart-", "")}` });
  }
}

/** Buttons that save charts as SVG, each the chart that it names; `several` lists names that stand for several. */
function watchSvgButtons(several = {}) {
  for (const button of document.querySelectorAll("button[data-svg]")) {
    button.addEventListener("click", () => saveSvgs(several[button.dataset.svg]?.() ?? [button.dataset.svg]));
  }
}

/** Draws the charts once the page is loaded, when the colour scheme changes, and before printing. */
function chartsOnLoad(all, redraw = () => {}) {
  addEventListener("load", () => requestAnimationFrame(() => setTimeout(() => watchCharts(all))));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { redraw(); redrawCharts(); });
  addEventListener("beforeprint", drawAllCharts);
}
