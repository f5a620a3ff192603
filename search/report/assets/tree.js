// The tree: drawing, zoom, keyboard, and the tooltip of a node.

const GLYPHS = words.statuses;
const svg = byId("tree");
const nodes = laidOut();
const view = { scale: 1, x: 0, y: 0 };
const ZOOM = { least: 0.08, most: 6, readable: 0.42 };
let stage = null;
let current = "";
let shown = new Set(variants.keys());

const speedups = data.variants.map((each) => each.speedup).filter(known);
const [slowest, fastest] = [Math.log(Math.min(...speedups)), Math.log(Math.max(...speedups))];

/** The colour of a speedup, on a logarithmic scale between the run's slowest and fastest kernel. */
function speedupColour(speedup) {
  const share = fastest > slowest ? (Math.log(speedup) - slowest) / (fastest - slowest) : 1;
  return mixed(colour("slow"), colour("fast"), share);
}

function mixed(from, to, share) {
  const part = (hex, at) => parseInt(hex.slice(at, at + 2), 16);
  return `rgb(${[1, 3, 5].map((at) => Math.round(part(from, at) * (1 - share) + part(to, at) * share)).join(" ")})`;
}

function draw() {
  stage = element("g", {});
  const [edges, boxes, marks] = [element("g", { fill: "none" }), element("g", {}), element("g", {})];
  for (const node of nodes.values()) {
    if (node.kind === "round") marks.append(label(node.x, topEdge() - 22, `round ${node.round}`, "soft", 13));
    else if (node.kind === "variant") marks.append(drawnVariant(node));
    else boxes.append(...drawnBox(node, edges));
  }
  stage.append(edges, boxes, marks);
  svg.replaceChildren(stage);
  moveView();
  markShown();
}

const topEdge = () => Math.min(...[...nodes.values()].map((node) => node.top ?? Infinity));
const label = (x, y, text, name, size = 11) =>
  element("text", { x, y, fill: colour(name), "font-size": size, "font-family": "system-ui, sans-serif" }, text);

function drawnBox(node, edges) {
  const idea = ideas.get(node.id);
  const path = onPath.has(node.id);
  if (idea) edges.append(edge(nodes.get(node.parent), node, path));
  const box = element("rect", {
    x: node.x, y: node.top, width: node.width, height: node.height, rx: 6, fill: colour("back"),
    stroke: colour(path ? "path" : "line"), "stroke-width": path ? 2 : 1, "data-node": node.id, cursor: "pointer",
  });
  const name = idea ? words.categories[idea.category] ?? idea.category : node.id || "reference";
  const text = label(node.x + 7, node.top + (idea ? 14 : 19), shorten(name, 13), "text");
  text.setAttribute("pointer-events", "none");
  return [box, text];
}

function edge(from, to, path) {
  const [x, y] = [from.kind === "variant" ? from.x + 5 : from.x + from.width, from.y];
  const middle = (x + to.x) / 2;
  const attributes = path ? { stroke: colour("path"), "stroke-width": 3 } : { stroke: colour("grey"), opacity: 0.45 };
  return element("path", { d: `M${x} ${y}C${middle} ${y} ${middle} ${to.y} ${to.x} ${to.y}`, ...attributes });
}

/** A dot coloured by speedup or, for a variant that is not correct, the sign of its status. */
function drawnVariant(node) {
  const variant = variants.get(node.id);
  const group = element("g", { "data-node": node.id, cursor: "pointer" });
  group.append(element("circle", { cx: node.x, cy: node.y, r: 8.5, fill: "transparent" }));
  if (known(variant.speedup)) {
    const ring = variant.on_path ? { stroke: colour("path"), "stroke-width": 2.5 } : { stroke: colour("grey"), "stroke-width": 0.5 };
    const fill = speedupColour(variant.speedup);
    group.append(element("circle", { cx: node.x, cy: node.y, r: variant.id === winner?.id ? 7.5 : 6, fill, ...ring }));
  } else {
    const sign = label(node.x, node.y + 4.5, GLYPHS[variant.status] ?? "·", "grey", 13);
    sign.setAttribute("fill", statusColour(variant.status));
    sign.setAttribute("text-anchor", "middle");
    group.append(sign);
  }
  return group;
}

function moveView() {
  stage.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
}

/** Zooms by a factor; the point at (x, y) of the picture stays where it is. */
function zoom(factor, x = svg.clientWidth / 2, y = svg.clientHeight / 2) {
  const scale = Math.min(ZOOM.most, Math.max(ZOOM.least, view.scale * factor));
  view.x = x - ((x - view.x) * scale) / view.scale;
  view.y = y - ((y - view.y) * scale) / view.scale;
  view.scale = scale;
  moveView();
}

/** Fits the whole tree or, if that would be unreadable, the part around the winner (or else the beginning). */
function fit(whole = false) {
  const all = [...nodes.values()].filter((node) => known(node.top));
  const right = Math.max(...all.map((node) => node.x + node.width));
  const [top, bottom] = [topEdge() - 44, Math.max(...all.map((node) => node.top + node.height))];
  const high = 52 + ((bottom - top) * (svg.clientWidth - 24)) / right;
  svg.style.height = `${Math.max(280, Math.min(high, 0.7 * innerHeight))}px`;
  const [across, down] = [(svg.clientWidth - 24) / right, (svg.clientHeight - 24) / (bottom - top)];
  const ratio = Math.min(across, down);
  const readable = whole || ratio >= ZOOM.readable;
  view.scale = Math.max(ZOOM.least, Math.min(1.3, readable ? ratio : Math.max(ZOOM.readable, Math.min(down, 0.9))));
  const room = svg.clientWidth - right * view.scale;
  const wanted = winner && !readable ? svg.clientWidth / 2 - nodes.get(winner.id).x * view.scale : room / 2;
  view.x = Math.max(Math.min(12, room - 12), Math.min(wanted, Math.max(12, room / 2)));
  view.y = (svg.clientHeight - (top + bottom) * view.scale) / 2;
  moveView();
}

function centre(id, scale = view.scale) {
  const node = nodes.get(id);
  view.scale = scale;
  view.x = svg.clientWidth / 2 - (node.x + (node.width ?? 0) / 2) * scale;
  view.y = svg.clientHeight / 2 - node.y * scale;
  moveView();
}

/** A node's position in the picture. */
const placeOf = (node) => ({ x: view.x + (node.x + (node.width ?? 0) / 2) * view.scale, y: view.y + node.y * view.scale });

/** Scrolls a node into view if necessary. */
function reveal(node) {
  const { x, y } = placeOf(node), margin = 30;
  const inside = x > margin && y > margin && x < svg.clientWidth - margin && y < svg.clientHeight - margin;
  if (!inside || view.scale < ZOOM.readable) centre(node.id, Math.max(view.scale, ZOOM.readable));
}

/** Fades nodes that the filters exclude, and rings the current node. */
function markShown() {
  for (const drawn of svg.querySelectorAll("[data-node]")) {
    const id = drawn.dataset.node, own = variantsOf.get(id);
    const left = variants.has(id) ? shown.has(id) : !own || own.some((each) => shown.has(each.id));
    drawn.setAttribute(variants.has(id) ? "opacity" : "stroke-opacity", left ? 1 : 0.12);
  }
  stage.querySelector("#ring")?.remove();
  const node = nodes.get(current);
  if (!node || !svg.matches(":focus, .marked")) return;
  const place = node.kind === "variant"
    ? { x: node.x - 9.5, y: node.y - 9.5, width: 19, height: 19, rx: 9.5 }
    : { x: node.x - 3, y: node.top - 3, width: node.width + 6, height: node.height + 6, rx: 8 };
  stage.append(element("rect", { id: "ring", ...place, fill: "none", stroke: colour("focus"), "stroke-width": 2.5, "pointer-events": "none" }));
}

/** A few lines about a node, for its tooltip. */
function told(node) {
  if (node.kind === "reference") return `The reference: ${run.problem}`;
  if (node.kind === "entry") return `Library kernel: ${node.id}`;
  const variant = variants.get(node.id), idea = ideas.get(variant ? variant.idea : node.id);
  const head = `Round ${idea.round}, ${idea.category}${idea.model ? `, ${idea.model}` : ""}`;
  const text = `${head}\n${shorten(idea.text, 260)}`;
  if (!variant) return `${text}\n${idea.correct} of ${idea.variants} correct, best ${times(idea.speedup)}`;
  const repaired = variant.repairs ? `, repairs ${shortId(variant.repairs)}` : "";
  const figures = known(variant.speedup)
    ? `${milliseconds(variant.kernel_ms)} ms, ${times(variant.speedup)} ${interval(variant)}` : variant.cause;
  return `${text}\n${variant.status || "no verdict yet"}${repaired}: ${figures}`;
}
