// The run as records that know one another, and where each stands in the tree.

const { run, winner, words } = data;
const variants = new Map(data.variants.map((each) => [each.id, each]));
const ideas = new Map(data.ideas.map((each) => [each.id, each]));
const entries = new Map(data.entries.map((each) => [each.id, each]));
const calls = new Map(data.calls.map((each) => [each.id, each]));
const variantsOf = Map.groupBy(data.variants, (each) => each.idea);
/** The kernels that led to the winner and were timed, the first one first. */
const winnersPath = data.variants.filter((each) => each.on_path && known(each.speedup)).sort((a, b) => a.round - b.round);
const onPath = new Set(data.variants.filter((each) => each.on_path).flatMap((each) => [each.id, each.idea]));

/** The long texts, by their numbers, once they are unpacked. */
const texts = (async () => {
  const bytes = Uint8Array.from(atob(byId("texts").textContent), (each) => each.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(unpacked).text());
})();
const textOf = async (number) => (known(number) ? (await texts)[number] : "");

const DOT = 17;  // from one variant to the next
const PER_ROW = 4;
const HEAD = 19;  // of an idea's box, for its category
const GAP = { x: 66, y: 16 };

/** Nodes by id, in columns: the reference and the library's kernels, then the ideas of each round, in boxes with
 *  their variants. Within a column they stand in the order of their parents. */
function laidOut() {
  const nodes = new Map();
  const first = [{ id: "", kind: "reference" }, ...data.entries.map((each) => ({ id: each.id, kind: "entry" }))];
  stack(first.map((each) => ({ ...each, width: 84, height: 30, parent: null })), 0, nodes);
  let x = 84 + GAP.x;
  for (const [round, own] of [...Map.groupBy(data.ideas, (each) => each.round)].sort((a, b) => a[0] - b[0])) {
    const boxes = own.map((idea) => boxOf(idea));
    const height = (box) => nodes.get(box.parent)?.y ?? 0;
    boxes.sort((a, b) => height(a) - height(b) || a.number - b.number);
    stack(boxes, x, nodes);
    for (const box of boxes) placeVariants(box, nodes);
    nodes.set(`round ${round}`, { id: `round ${round}`, kind: "round", round, x });
    x += Math.max(...boxes.map((box) => box.width)) + GAP.x;
  }
  return nodes;
}

function boxOf(idea) {
  const own = variantsOf.get(idea.id) ?? [];
  const perRow = Math.max(PER_ROW, Math.ceil(Math.sqrt(own.length)));
  const rows = Math.max(1, Math.ceil(own.length / perRow));
  const size = { width: perRow * DOT + 10, height: HEAD + rows * DOT + 5 };
  const parent = nodeKey(idea.parent);
  return { id: idea.id, kind: "idea", number: idea.number, round: idea.round, perRow, own, parent, ...size };
}

const nodeKey = (parent) => (variants.has(parent) || entries.has(parent) ? parent : "");

/** Puts boxes below one another, around the height 0. */
function stack(boxes, x, nodes) {
  const total = boxes.reduce((sum, box) => sum + box.height + GAP.y, -GAP.y);
  let y = -total / 2;
  for (const box of boxes) {
    Object.assign(box, { x, top: y, y: y + box.height / 2 });
    nodes.set(box.id, box);
    y += box.height + GAP.y;
  }
}

function placeVariants(box, nodes) {
  box.own.forEach((variant, at) => {
    const column = at % box.perRow, row = Math.floor(at / box.perRow);
    nodes.set(variant.id, {
      id: variant.id, kind: "variant", parent: box.id, round: variant.round,
      x: box.x + 5 + DOT * (column + 0.5), y: box.top + HEAD + DOT * (row + 0.5),
    });
  });
}

/** What a node is called in the address. */
function fragmentOf(node) {
  return node.kind === "reference" ? "reference" : `${node.kind}-${encodeURIComponent(node.id)}`;
}

/** The id and kind of the node that an address names; null for any other. */
function namedBy(fragment) {
  if (fragment === "reference") return { id: "", kind: "reference" };
  const [, kind, rest] = /^(variant|idea|entry)-(.+)$/.exec(fragment) ?? [];
  let id = null;
  try { id = decodeURIComponent(rest ?? ""); } catch { return null; }
  const known = { variant: variants, idea: ideas, entry: entries }[kind];
  return known?.has(id) ? { id, kind } : null;
}
