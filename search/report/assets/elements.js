// What all pages share: elements, figures, tables, files. Text is always set as text.

const byId = (id) => document.getElementById(id);

/** A new element; `attributes` may have event handlers, whose names begin with "on". Strings become text. */
function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "circle", "rect", "text", "title", "line"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

const data = JSON.parse(byId("data").textContent);
const pageName = document.body.dataset.name;  // of what is shown: saved files are called so
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const known = (value) => value !== null && value !== undefined;
const digits = (value, n) => (known(value) ? Number(value).toPrecision(n) : "-");
const milliseconds = (ms) => (!known(ms) ? "-" : ms >= 100 ? ms.toFixed(0) : digits(ms, 3));
const times = (x) => (!known(x) ? "-" : `${x.toFixed(x < 9.995 ? 2 : x < 99.95 ? 1 : 0)}x`);
const percent = (share) => (!known(share) ? "-" : share > 1.005 ? ">100 %" : `${(100 * share).toFixed(0)} %`);
const dollars = (value) => (value > 0 && value < 0.01 ? `$${value.toFixed(4)}` : `$${value.toFixed(2)}`);
const interval = (row) => (known(row.speedup) ? `[${row.speedup_low.toFixed(2)}, ${row.speedup_high.toFixed(2)}]` : "");
const shortId = (id) => (/^[0-9a-f]{12}$/.test(id) ? id.slice(0, 6) : id || "reference");
/** The text, cut at the end of a word if it is longer. */
const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 3).replace(/\s+\S*$/, "")}...` : text);

/** Saves a text as a file. */
function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** A field as CSV has it. One that a spreadsheet would take for a formula is marked as text. */
function csvField(value) {
  const text = String(value ?? "");
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function saveTable(name, columns, rows) {
  save(`${name}.csv`, "text/csv", [columns, ...rows].map((row) => row.map(csvField).join(",")).join("\r\n") + "\r\n");
}

/** Names and texts, for a list of terms. */
const terms = (pairs) => pairs.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]);
const card = (figure, text) => element("div", { class: "card" }, element("b", {}, figure), element("span", {}, text));

/** A table of rows of texts or elements; columns are words where they are named so. */
function table(id, columns, rows, wordy) {
  const cell = (tag, at, text) => element(tag, { class: wordy.includes(at) ? "words" : null }, text);
  byId(id).replaceChildren(
    element("thead", {}, element("tr", {}, ...columns.map((name, at) => cell("th", at, name)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((text, at) => cell("td", at, text instanceof Node ? text : String(text)))))),
  );
}
