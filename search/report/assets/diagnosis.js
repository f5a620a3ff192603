// A kernel's diagnosis: what its profile means.

const microseconds = (us) => (us >= 1000 ? `${milliseconds(us / 1000)} ms` : `${digits(us, 3)} µs`);
const isProfiled = Object.keys(data.diagnoses).length > 0;

/** The name of the most expensive finding; "" for a kernel without a profile. */
function bottleneckOf(kernel) {
  const found = data.diagnoses[kernel];
  return !found?.reached.length ? "" : found.findings[0]?.name ?? "none found";
}

/** A tab with the kernel's diagnosis, if one was taken. */
const diagnosisTabs = (kernel) => {
  const found = data.diagnoses[kernel];
  return found ? [["Profile", async () => diagnosisNodes(found)]] : [];
};

function diagnosisNodes(found) {
  const missing = Object.entries(found.missing).map(([level, why]) => [`no ${level}`, why]);
  if (!found.reached.length) return [element("p", {}, "This kernel could not be profiled."), facts(missing)];
  const gaps = found.gaps_us ? `, ${microseconds(found.gaps_us)} of it without a running kernel` : "";
  const call = known(found.call_us) ? microseconds(found.call_us) + gaps : null;
  const took = Object.entries(found.seconds).map(([level, seconds]) => `${level} ${seconds} s`);
  return [
    element("h3", {}, "Bottlenecks"),
    found.findings.length ? element("ol", { class: "findings" }, ...found.findings.map(findingItem))
      : element("p", {}, "No rule found one."),
    ...(call || found.times.length ? [element("h3", {}, "Time of a call"), facts([["call", call]]), launchBars(found)] : []),
    ...(found.figures.length ? [element("h3", {}, "Figures"), factsOfLines(found.figures)] : []),
    element("h3", {}, "Levels"),
    facts([["reached", found.reached.join(", ")], ...missing, ["taken in", took.join(", ")], ["isolation", found.isolation]]),
    element("p", { class: "hint" }, "A profile is taken apart from any measurement and changes times: compare kernels by their measured times."),
  ];
}

function findingItem(each) {
  const cost = `, costs about ${percent(each.share)} of the time (${each.confidence})`;
  return element("li", {}, element("b", {}, each.name), each.kernel ? ` in ${each.kernel}` : "", element("span", { class: "unsure" }, cost),
    facts([["evidence", each.evidence], ["usually helps", each.helps]]));
}

function factsOfLines(pairs) {
  const made = facts(pairs);
  made.classList.add("lines");
  return made;
}

/** A bar for each kernel of a call: the time of all its launches. */
function launchBars(found) {
  const longest = Math.max(...found.times.map((each) => each.total_us));
  return element("div", { class: "bars" }, ...found.times.flatMap((each) => [
    element("span", {}, each.kernel),
    found.times.length > 1 ? element("span", { class: "bar", style: `width: ${(100 * each.total_us) / longest}%` }) : element("span", {}),
    element("span", {}, each.launches === 1 ? microseconds(each.total_us)
      : `${Number(digits(each.launches, 3))} launches of ${microseconds(each.mean_us)}`),
  ]));
}
