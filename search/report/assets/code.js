// Code with colours, and differences.

const PYTHON = "and as assert async await break class continue def del elif else except False finally for from " +
  "global if import in is lambda None nonlocal not or pass raise return True try while with yield";
const CPP = "__device__ __global__ __host__ __launch_bounds__ __restrict__ __shared__ __syncthreads auto bool break " +
  "case char class const constexpr continue default double else enum extern false float for half if inline int long " +
  "namespace new nullptr operator public private return short signed sizeof static struct switch template this true " +
  "typedef typename uint32_t int64_t unsigned using void volatile while";
const LANGUAGES = {
  python: {
    words: new Set(PYTHON.split(" ")),
    token: /(?<comment>#[^\n]*)|(?<string>(?:[rbfRBF]{0,2})(?:"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))|(?<number>\b\d[\w.]*)|(?<name>[A-Za-z_]\w*)/g,
  },
  cpp: {
    words: new Set(CPP.split(" ")),
    token: /(?<comment>\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)|^[ \t]*#\w+[^\n]*)|(?<string>"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?)|(?<number>\b\d[\w.]*)|(?<name>[A-Za-z_]\w*)/gm,
  },
};

/** The source with colours, as nodes. Long strings with C++ or CUDA in them are coloured as such. */
function highlighted(source, language = "python") {
  const { words, token } = LANGUAGES[language];
  const nodes = [];
  let end = 0;
  for (const match of source.matchAll(token)) {
    if (match.index > end) nodes.push(source.slice(end, match.index));
    end = match.index + match[0].length;
    const { comment, string, number } = match.groups;
    const inner = string && language === "python" && /^\w*("""|''')/.test(string) && /;\s*\n/.test(string);
    if (inner) nodes.push(...highlighted(string, "cpp"));
    else if (comment) nodes.push(element("span", { class: "comment" }, comment));
    else if (string) nodes.push(element("span", { class: "string" }, string));
    else if (number) nodes.push(element("span", { class: "number" }, number));
    else if (words.has(match[0])) nodes.push(element("span", { class: "keyword" }, match[0]));
    else nodes.push(match[0]);
  }
  return [...nodes, source.slice(end)];
}

const DIFFERENT_AT_MOST = 4e6;  // cells of the table of common subsequences
const CONTEXT = 3;  // lines around a change

/** The lines of two texts as [" ", "-" or "+", line], by their longest common subsequence. */
function difference(before, after) {
  const a = before.split("\n"), b = after.split("\n");
  let start = 0, ends = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  while (ends < a.length - start && ends < b.length - start && a.at(-1 - ends) === b.at(-1 - ends)) ends++;
  const head = a.slice(0, start), tail = a.slice(a.length - ends);
  const own = a.slice(start, a.length - ends), other = b.slice(start, b.length - ends);
  return [...head.map((line) => [" ", line]), ...changes(own, other), ...tail.map((line) => [" ", line])];
}

function changes(a, b) {
  const width = b.length + 1;
  if ((a.length + 1) * width > DIFFERENT_AT_MOST) {
    return [...a.map((line) => ["-", line]), ...b.map((line) => ["+", line])];
  }
  const common = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const at = i * width + j;
      common[at] = a[i] === b[j] ? common[at + width + 1] + 1 : Math.max(common[at + width], common[at + 1]);
    }
  }
  const lines = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    const at = i * width + j;
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push([" ", a[i++]]);
      j++;
    } else if (j >= b.length || (i < a.length && common[at + width] >= common[at + 1])) lines.push(["-", a[i++]]);
    else lines.push(["+", b[j++]]);
  }
  return lines;
}

/** A difference as nodes: changed lines with some around them. */
function differenceNodes(before, after) {
  const lines = difference(before, after);
  const near = new Uint8Array(lines.length);
  lines.forEach(([sign], at) => {
    if (sign !== " ") near.fill(1, Math.max(0, at - CONTEXT), at + CONTEXT + 1);
  });
  const kinds = { "+": "added", "-": "removed" };
  const nodes = [];
  for (let at = 0; at < lines.length; at++) {
    if (near[at]) nodes.push(element("span", { class: kinds[lines[at][0]] }, lines[at].join(" ")), "\n");
    else if (at === 0 || near[at - 1]) {
      const next = near.indexOf(1, at);
      const left = (next < 0 ? lines.length : next) - at;
      nodes.push(element("span", { class: "skipped" }, `  ... ${left} equal line${left === 1 ? "" : "s"}\n`));
    }
  }
  return lines.some(([sign]) => sign !== " ") ? nodes : ["The two sources are equal."];
}
