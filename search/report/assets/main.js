// Fills the page, and answers pointer, keyboard and address.

function head() {
  byId("title").textContent = `${run.problem} on ${run.device}`;
  const state = run.open ? `running or stopped after round ${run.rounds_closed}` : "ended";
  byId("state").textContent = `${run.folder}: ${state}`;
  byId("facts").append(...terms(Object.entries(run.facts)));
  byId("closing").append(...terms(run.closing.flatMap(closingRows)));
  const measured = !winner ? "" : winner.confirmed ? "confirmed" : winner.measured_again ? "not confirmed" : "during the search";
  const cards = winner ? [
    card(times(winner.speedup), `over eager, ${interval(winner)}, ${measured}`),
    card(`${milliseconds(winner.kernel_ms)} ms`, `eager ${milliseconds(winner.eager_ms)} ms`),
    known(winner.compile_ms) ? card(times(winner.compile_ms / winner.kernel_ms), "over torch.compile") : null,
    known(winner.roofline_share) ? card(percent(winner.roofline_share), `of the roofline, ${winner.bound} bound`) : null,
  ] : [card("none", "no correct kernel yet")];
  cards.push(card(String(run.evaluations), `evaluations in ${run.rounds_closed} rounds`));
  byId("cards").append(...cards.filter(Boolean));
  byId("open-winner").hidden = !winner;
}

/** A closing line. A winner that was built on others has a path, whose largest step says most about it. */
const closingRows = ([name, text]) => {
  if (name !== "idea" || winnersPath.length < 2) return [[name, text]];
  const largest = winnersPath.slice(1).reduce((most, each) => (stepOf(each) > stepOf(most) ? each : most));
  const step = (each) => `${times(stepOf(each))} in round ${each.round}${isNoise(each) ? " (within the error)" : ""}`;
  const last = winnersPath.at(-1);
  return [
    ["path", winnersPath.map((each) => `${times(each.speedup)} in round ${each.round}`).join(", then ")],
    ["largest step", `${step(largest)}: ${ideas.get(largest.idea).text}`],
    ...(last === largest ? [] : [["last step", `${step(last)}: ${ideas.get(last.idea).text}`]]),
  ];
};

/** What a kernel gained over the one that it was built on. */
const stepOf = (each) => (ideas.get(each.idea).best === each.id ? ideas.get(each.idea).gain : null) ?? gainOver(each);

/** Whether a kernel's interval overlaps that of the one it was built on. */
const isNoise = (each) => {
  const before = variants.get(each.parent);
  return before?.speedup_high != null && each.speedup_low <= before.speedup_high && before.speedup_low <= each.speedup_high;
};

/** The kernels that led to the winner, and every idea with what it gained. */
function steps() {
  byId("steps-frame").hidden = !winnersPath.length;
  const columns = ["round", "idea", "category", "ms", "over eager", "gain", "predicted"];
  const predicted = (idea) => (idea.predicted_gain > 0 ? times(idea.predicted_gain) : "-");
  table("steps", columns, winnersPath.map((each) => {
    const idea = ideas.get(each.idea);
    return [each.round, linkTo({ id: each.id, kind: "variant" }, shorten(idea.text, 1200)), words.categories[idea.category],
      milliseconds(each.kernel_ms), times(each.speedup), times(stepOf(each)) + (isNoise(each) ? ", within the error" : ""), predicted(idea)];
  }), [1]);
  const judged = data.ideas.filter((each) => (variantsOf.get(each.id) ?? []).some((own) => own.status));
  const ranked = judged.sort((a, b) => a.round - b.round || (b.gain ?? 0) - (a.gain ?? 0));
  byId("h-ideas").append(` (${ranked.length} ideas)`);
  table("idea-gains", ["round", "idea", "category", "correct", "best ms", "over eager", "gain", "predicted"], ranked.map((idea) => [
    idea.round, linkTo({ id: idea.id, kind: "idea" }, shorten(idea.text, 280)), words.categories[idea.category], `${idea.correct} of ${idea.variants}`,
    milliseconds(idea.kernel_ms), times(idea.speedup), times(idea.gain), predicted(idea),
  ]), [1]);
}

/** How many times as fast a kernel is as the one it was built on, by their speedups. */
const gainOver = (variant) => variant.speedup / (variants.get(variant.parent)?.speedup ?? 1);

function tables() {
  const last = run.columns.length - 1;
  table("trajectory", run.columns, run.trajectory, [last]);
  byId("reflections-frame").hidden = !run.reflections.length;
  byId("reflections").append(...terms(run.reflections));
  const paid = data.calls.some((each) => each.dollars > 0);
  const columns = ["ideas", "variants", "correct", "new bests", "best", "median gain"];
  if (paid) columns.push("cost");
  const row = (name, each) => [name, each.ideas, each.variants, each.correct, each.new_bests, times(each.best_speedup),
    times(each.gain), ...(paid ? [dollars(each.dollars)] : [])];
  table("categories", ["category", ...columns], data.categories.map((each) => row(each.category, each)), [0]);
  byId("probes-frame").hidden = !data.probes.length;
  table("probes", ["round", "kernel", "question", "what was timed", "result"], data.probes.map((each) => [each.round, shortId(each.base),
    each.question, each.what, each.result]), [2, 3, 4]);
  byId("models").hidden = !data.models.length;
  table("models", ["model", ...columns], data.models.map((each) => row(each.model, each)), [0]);
  byId("languages").hidden = data.languages.length < 2;
  table("languages", ["language", ...columns], data.languages.map((each) => row(each.language, each)), [0]);
}

function legend() {
  const dot = (fill) => {
    const picture = element("svg", { width: 14, height: 14, "aria-hidden": "true" });
    picture.append(element("circle", { cx: 7, cy: 7, r: 6, fill, stroke: colour("grey"), "stroke-width": 0.5 }));
    return picture;
  };
  const scale = speedups.length ? [
    element("span", {}, dot(colour("slow")), ` ${times(Math.exp(slowest))} (slowest)`),
    element("span", {}, dot(colour("fast")), ` ${times(Math.exp(fastest))} (fastest)`),
  ] : [];
  const signs = Object.entries(GLYPHS).filter(([status]) => status !== "correct" && data.variants.some((each) => each.status === status));
  byId("legend").replaceChildren(...scale, ...signs.map(([status, sign]) => {
    const shownSign = element("b", {}, sign);
    shownSign.style.color = statusColour(status);
    return element("span", {}, shownSign, ` ${status}`);
  }), "thick line: the winner's path");
}

const tip = byId("tip");
function showTip(node, x, y) {
  tip.textContent = told(node);
  tip.hidden = false;
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y + 14 + tip.offsetHeight > innerHeight ? Math.max(4, y - tip.offsetHeight - 10) : y + 14}px`;
}
const hideTip = () => { tip.hidden = true; };
const nodeUnder = (target) => nodes.get(target.closest?.("[data-node]")?.dataset.node);

/** Drags with one pointer, zooms with two. */
function watchPointers() {
  const down = new Map();
  let moved = false, apart = 0;
  const distance = () => { const [a, b] = [...down.values()]; return Math.hypot(a.x - b.x, a.y - b.y); };
  svg.addEventListener("pointerdown", (event) => {
    down.set(event.pointerId, { x: event.clientX, y: event.clientY });
    moved = false;
    if (down.size === 2) apart = distance();
  });
  svg.addEventListener("pointermove", (event) => {
    const last = down.get(event.pointerId);
    const under = nodeUnder(event.target);
    if (!last) return under ? showTip(under, event.clientX, event.clientY) : hideTip();
    const [dx, dy] = [event.clientX - last.x, event.clientY - last.y];
    if (!moved && Math.hypot(dx, dy) < 5) return;
    moved = true;
    hideTip();
    svg.setPointerCapture(event.pointerId);
    down.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (down.size === 2) {
      const place = svg.getBoundingClientRect();
      zoom(distance() / apart, event.clientX - place.x, event.clientY - place.y);
      apart = distance();
    } else {
      view.x += dx;
      view.y += dy;
      moveView();
    }
  });
  for (const name of ["pointerup", "pointercancel"]) svg.addEventListener(name, (event) => down.delete(event.pointerId));
  svg.addEventListener("pointerleave", hideTip);
  svg.addEventListener("click", (event) => {
    const node = nodeUnder(event.target);
    if (node && !moved) openDetails(node);
  });
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(Math.exp(-event.deltaY / 300), event.offsetX, event.offsetY);
  }, { passive: false });
}

/** The node that an arrow key moves to: along the tree, or up and down within a column. */
function neighbour(key) {
  const node = nodes.get(current) ?? nodes.get("");
  const all = [...nodes.values()].filter((each) => each.kind !== "round");
  if (key === "Home") return nodes.get("");
  if (key === "ArrowLeft") return nodes.get(node.parent) ?? node;
  if (key === "ArrowRight") {
    const below = all.filter((each) => each.parent === node.id && each !== node);
    return below.find((each) => onPath.has(each.id)) ?? below[0] ?? node;
  }
  const same = all.filter((each) => each.kind === node.kind && each.round === node.round);
  same.sort((a, b) => a.y - b.y || a.x - b.x);
  return same[same.indexOf(node) + (key === "ArrowDown" ? 1 : -1)] ?? node;
}

function watchKeys() {
  const zooms = { "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), 0: () => fit(true) };
  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow") || event.key === "Home") {
      const node = neighbour(event.key);
      current = node.id;
      reveal(node);
      markShown();
      const frame = svg.getBoundingClientRect(), place = placeOf(node);
      showTip(node, frame.x + place.x, frame.y + place.y);
    } else if (event.key === "Enter" || event.key === " ") {
      openDetails(nodes.get(current) ?? nodes.get(""));
    } else if (zooms[event.key]) zooms[event.key]();
    else return;
    event.preventDefault();
  });
  for (const name of ["focus", "blur"]) svg.addEventListener(name, () => { markShown(); hideTip(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") { hideTip(); closeDetails(); } });
}

/** Opens the node that the address names. */
function follow() {
  const named = namedBy(location.hash.slice(1));
  if (!named) return;
  reveal(nodes.get(named.id));
  openDetails(named);
}

const handlers = {
  "zoom-in": () => zoom(1.25), "zoom-out": () => zoom(0.8), "zoom-fit": () => fit(true),
  "zoom-winner": () => winner && centre(winner.id, 1), "save-svg": saveSvg, "save-csv": saveCsv,
  "open-winner": () => openDetails({ id: winner.id, kind: "variant" }),
  "open-reference": () => openDetails({ id: "", kind: "reference" }),
};
for (const [id, handler] of Object.entries(handlers)) byId(id).addEventListener("click", handler);
head();
steps();
tables();
makeFilters();
draw();
fit();
legend();
filter();
watchPointers();
watchKeys();
byId("list-frame").addEventListener("toggle", list);
addEventListener("hashchange", follow);
follow();
document.body.dataset.ready = Math.round(performance.now());  // ms since the page was requested
byId("chart-winner").hidden = !winner;
byId("chart-device").hidden = run.recorded || data.time.elsewhere;
byId("chart-time").hidden = !Object.keys(data.time.stages_s).length;
chartsOnLoad(CHARTS, () => { draw(); legend(); });
