// The details of one node, in a panel next to the tree.

const panel = byId("details");
let opened = 0;

function closeDetails() {
  if (panel.hidden) return;
  panel.hidden = true;
  history.replaceState(null, "", location.pathname + location.search);
  svg.focus({ preventScroll: true });
}

/** Opens a node by its id and kind; the address then names it. */
function openDetails(named) {
  current = named.id;
  svg.classList.add("marked");
  markShown();
  const fragment = `#${fragmentOf(named)}`;
  if (location.hash !== fragment) history.replaceState(null, "", fragment);
  const content = { variant: aboutVariant, idea: aboutIdea, entry: aboutEntry, reference: aboutReference }[named.kind];
  opened++;
  panel.classList.remove("wide");
  panel.replaceChildren(
    element("button", { class: "close", onclick: closeDetails }, "Close"),
    ...content(named.id),
  );
  panel.hidden = false;
  panel.scrollTop = 0;
  panel.focus({ preventScroll: true });
}

const title = (text) => element("h2", { id: "details-title" }, text);
const linkTo = (named, text) => element("a", { href: `#${fragmentOf(named)}` }, text);
const linkToParent = (id) =>
  linkTo({ id: nodeKey(id), kind: variants.has(id) ? "variant" : entries.has(id) ? "entry" : "reference" }, shortId(id));

function facts(pairs) {
  const rows = pairs.filter(([, value]) => known(value) && value !== "");
  return element("dl", {}, ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

/** Tabs; each has a name and a function that gives its nodes, which may take a while. */
function tabs(parts) {
  const bar = element("div", { class: "tabs", role: "tablist" });
  const body = element("div", { role: "tabpanel", tabindex: 0, "aria-busy": "true" });
  const select = async (at, focus = false) => {
    const turn = ++opened;
    [...bar.children].forEach((tab, number) => {
      tab.setAttribute("aria-selected", number === at);
      tab.tabIndex = number === at ? 0 : -1;
    });
    if (focus) bar.children[at].focus();
    body.setAttribute("aria-busy", "true");
    const content = await Promise.resolve().then(parts[at][1]).catch((error) => [element("p", {}, `Cannot show this: ${error.message}`)]);
    if (turn !== opened) return;
    body.replaceChildren(...content);
    body.setAttribute("aria-busy", "false");
  };
  parts.forEach(([name], at) => bar.append(element("button", {
    role: "tab",
    onclick: () => select(at),
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) select((at + step + parts.length) % parts.length, true);
    },
  }, name)));
  select(0);
  return [bar, body];
}

const code = (source) => element("pre", { tabindex: 0, class: "code" }, ...highlighted(source));
const plain = (text) => element("pre", { tabindex: 0, class: "wrap" }, text);

function aboutVariant(id) {
  const variant = variants.get(id), idea = ideas.get(variant.idea);
  const lineage = variant.lineage.slice(0, -1).flatMap((each) => [linkTo({ id: each, kind: "variant" }, shortId(each)), " → "]);
  return [
    title(`Variant ${shortId(id)}${id === winner?.id ? ", the winner" : ""}`),
    element("p", {}, idea.text),
    facts([
      ["status", `${GLYPHS[variant.status] ?? ""} ${variant.status || "no verdict yet"}${variant.reused ? " (verdict of an equal kernel)" : ""}`],
      ["cause", variant.cause],
      ["speedup", known(variant.speedup) ? `${times(variant.speedup)} ${interval(variant)} over eager` : null],
      ["final measurement", id === winner?.id && winner.measured_again
        ? `${times(winner.speedup)} ${interval(winner)}, ${milliseconds(winner.kernel_ms)} ms` : null],
      ["times", known(variant.kernel_ms) ? `${milliseconds(variant.kernel_ms)} ms; eager ${milliseconds(variant.eager_ms)} ms` +
        (known(variant.compile_ms) ? `; torch.compile ${milliseconds(variant.compile_ms)} ms` : "") : null],
      ["roofline", known(variant.roofline_share) ? `${percent(variant.roofline_share)} of the hardware limit` : null],
      ...variant.resources.map((each, at) => [at ? "" : "compiled", each]),
      ["bottleneck", bottleneckOf(variant.kernel)],
      ["category", `${variant.category}, round ${variant.round}`],
      ["written by", variant.model || variant.proposer],
      ["language", variant.language],
      ["path", element("span", {}, ...lineage, shortId(id))],
      ["idea", linkTo({ id: idea.id, kind: "idea" }, shortId(idea.id))],
      ["repairs", variant.repairs ? linkTo({ id: variant.repairs, kind: "variant" }, shortId(variant.repairs)) : null],
      ["cost", costOf(variant)],
    ]),
    linkButton(),
    ...tabs([
      ["Code", async () => [code(await textOf(variant.source))]],
      ["Diff", () => diffOf(variant)],
      ["Log", async () => [plain((await textOf(variant.log)) || "The evaluator wrote no log.")]],
      ...(variant.configurations.length ? [["Configurations", () => [plain(variant.configurations.join("\n"))]]] : []),
      ...(known(variant.device_s) ? [["Time", () => [plain(timesOf(variant).join("\n"))]]] : []),
      ...diagnosisTabs(variant.kernel),
      ["Prompt and answer", () => asked([...new Set([...variant.calls, ...idea.calls.filter((each) => calls.get(each).purpose === "ideas")])])],
    ]),
  ];
}

/** Where the time of a variant's evaluation went, one line per stage. */
function timesOf(variant) {
  const line = (name, number) => `${number.toFixed(3).padStart(9)} s  ${name}`;
  const stages = Object.entries(variant.stages_s).map(([name, number]) => line(name.replaceAll("_", " "), number));
  const waited = known(variant.waited_s) ? [line("waiting for a core or the device", variant.waited_s)] : [];
  return [line("build, on the cores", variant.build_s), ...waited, line("on the device:", variant.device_s), ...stages];
}

function costOf(variant) {
  const spent = known(variant.device_s) ? `device ${variant.device_s.toFixed(1)} s, build ${variant.build_s.toFixed(1)} s` : "not evaluated";
  return variant.tokens ? `${spent}; ${variant.tokens.toLocaleString("en")} tokens, ${dollars(variant.dollars)}` : spent;
}

function linkButton() {
  const button = element("button", {
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(location.href);
        button.textContent = "Copied";
      } catch {
        button.textContent = location.href;  // for copying by hand
      }
    },
  }, "Copy link");
  return button;
}

/** The difference from the kernel that it was made from: the failed one that it repairs, or its idea's seed. */
async function diffOf(variant) {
  const before = variants.get(variant.repairs || variant.parent) ?? entries.get(variant.parent);
  if (!before) return [element("p", {}, "It starts from the reference, so there is no kernel to compare it with.")];
  const nodes = differenceNodes(await textOf(before.source), await textOf(variant.source));
  return [
    element("p", { class: "hint" }, "Compared with ", linkToParent(before.id), variant.repairs ? ", which it repairs." : ", which its idea starts from."),
    element("pre", { tabindex: 0, class: "diff" }, ...nodes),
  ];
}

async function asked(ids) {
  if (!ids.length) return [element("p", {}, "No recorded model call produced this.")];
  const parts = await Promise.all(ids.map(async (id) => {
    const call = calls.get(id);
    const [system, prompt, answer] = await Promise.all([call.system, call.prompt, call.answer].map(textOf));
    const failed = call.cause ? `, ${call.cause}: ${call.detail}` : "";
    const cost = `${call.tokens.toLocaleString("en")} tokens, ${dollars(call.dollars)}, ${call.seconds.toFixed(1)} s`;
    return [
      element("h3", {}, `${call.purpose}: ${call.model}`),
      element("p", { class: "hint" }, `call ${id}, attempt ${call.attempt}, ${cost}${failed}`),
      element("details", {}, element("summary", {}, "System prompt"), plain(system)),
      element("details", { open: "" }, element("summary", {}, "Prompt"), plain(prompt)),
      element("details", { open: "" }, element("summary", {}, "Answer"), plain(answer || "none")),
    ];
  }));
  return parts.flat();
}

function aboutIdea(id) {
  const idea = ideas.get(id);
  const items = (variantsOf.get(id) ?? []).map((each) => element("li", {},
    linkTo({ id: each.id, kind: "variant" }, shortId(each.id)),
    ` ${each.status || "no verdict yet"} ${known(each.speedup) ? times(each.speedup) : each.cause}`));
  return [
    title(`Idea ${idea.round}.${idea.number}`),
    element("p", {}, idea.text),
    facts([
      ["category", idea.category], ["proposed by", idea.model || idea.proposer], ["expected", idea.expected],
      ["starts from", linkToParent(idea.parent)], ["also uses", idea.builds_on],
      ["gain", known(idea.gain) ? `${times(idea.gain)} over its starting point` : null],
      ["cost", idea.tokens ? `${idea.tokens.toLocaleString("en")} tokens, ${dollars(idea.dollars)} for its kernels` : null],
    ]),
    linkButton(),
    ...tabs([["Variants", async () => [element("ul", {}, ...items)]], ["Prompts and answers", () => asked(idea.calls)]]),
  ];
}

function aboutEntry(id) {
  const entry = entries.get(id);
  return [title(`Library kernel ${id}`), element("p", {}, entry.why), linkButton(),
    ...tabs([["Code", async () => [code(await textOf(entry.source))]], ...diagnosisTabs(entry.kernel)])];
}

function aboutReference() {
  panel.classList.add("wide");
  const best = variants.get(winner?.id);
  const pane = async (name, number) => element("div", {}, element("h3", {}, name), code(await textOf(number)));
  return [title(best ? "The winner next to the reference" : "The reference"), linkButton(), ...tabs([["Code", async () => [
    element("div", { class: "columns" }, await pane(`Reference: ${run.problem}`, run.reference),
      best ? await pane(`Winner: ${shortId(best.id)}, ${times(winner.speedup)}`, best.source) : null),
  ]]])];
}
