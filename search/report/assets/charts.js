// The charts of a run.

const minutes = (seconds) => seconds / 60;
const CATEGORIES = Object.keys(words.categories);
const categoryColour = (category) => palette()[CATEGORIES.indexOf(category) % palette().length];

function speedupChart() {
  const correct = data.variants.filter((each) => known(each.speedup));
  const spread = (each) => each.round + (((each.number * 7 + ideas.get(each.idea).number * 3) % 11) - 5) * 0.045;
  const dots = Map.groupBy(correct, (each) => each.category);
  const traces = CATEGORIES.filter((name) => dots.has(name)).map((name) => {
    const own = dots.get(name);
    return {
      type: "scatter", mode: "markers", name: words.categories[name], x: own.map(spread), y: own.map((each) => each.speedup),
      customdata: own.map((each) => each.id), marker: { color: categoryColour(name), size: 6, opacity: 0.65 },
      text: own.map((each) => wrapped(shorten(ideas.get(each.idea).text, 200))),
      hovertemplate: "%{y:.3g}x, round %{x:.0f}<br>%{text}<extra></extra>",
    };
  });
  const best = data.rounds.filter((each) => known(each.speedup));
  traces.push({
    type: "scatter", mode: "lines", name: "best so far", x: best.map((each) => each.round), y: best.map((each) => each.speedup),
    line: { shape: "hv", color: colour("grey"), width: 2 }, hovertemplate: "best after round %{x}: %{y:.3g}x<extra></extra>",
  }, {
    type: "scatter", mode: "lines+markers", name: "winner's path", x: winnersPath.map(spread), y: winnersPath.map((each) => each.speedup),
    customdata: winnersPath.map((each) => each.id), line: { color: colour("path"), width: 2.5 }, marker: { size: 9, color: colour("path") },
    text: winnersPath.map((each) => wrapped(shorten(ideas.get(each.idea).text, 200))),
    hovertemplate: "%{y:.3g}x<br>%{text}<extra>winner's path</extra>",
  });
  const box = chart("chart-speedup", traces, {
    title: "Speedup over eager PyTorch by round",
    xaxis: { title: { text: "round" }, dtick: data.rounds.length > 20 ? undefined : 1, zeroline: false },
    yaxis: logAxis("", correct.map((each) => each.speedup)),
    shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { dash: "dot", color: colour("grey") } }],
  }, "speedup");
  box.removeAllListeners("plotly_click");
  box.on("plotly_click", ({ points }) => points[0].customdata && openDetails({ id: points[0].customdata, kind: "variant" }));
}

function bestsChart() {
  const rounds = data.rounds.map((each) => each.round);
  const top = data.variants.filter((each) => known(each.speedup)).sort((a, b) => b.speedup - a.speedup).slice(0, 10);
  const per = (list) => rounds.map((round) => list.filter((each) => each.round === round).length);
  chart("chart-bests", [
    { type: "bar", name: "became the run's best", x: rounds, y: per(data.variants.filter((each) => each.new_best)) },
    { type: "bar", name: "of the ten fastest", x: rounds, y: per(top) },
  ], {
    title: "Rounds in which the best kernels were found", barmode: "group",
    xaxis: { title: { text: "round" }, dtick: rounds.length > 20 ? undefined : 1 }, yaxis: { title: { text: "kernels" }, rangemode: "tozero" },
  }, "bests");
}

function gainsChart() {
  const traces = data.categories.map((row) => {
    const own = data.ideas.filter((each) => each.category === row.category && known(each.gain));
    return {
      type: "box", name: words.categories[row.category], x: own.map((each) => each.gain), orientation: "h", boxpoints: "all", jitter: 0.5,
      pointpos: 0, marker: { size: 5, color: categoryColour(row.category) }, line: { width: 1 },
      text: own.map((each) => wrapped(shorten(each.text, 200))), hovertemplate: "%{x:.3g}x<br>%{text}<extra></extra>",
    };
  }).reverse();
  chart("chart-gains", traces, {
    title: "Gain of each idea's best kernel over its starting point", showlegend: false,
    xaxis: logAxis("gain", data.ideas.map((each) => each.gain)),
  }, "gains");
}

function statusChart() {
  const rows = data.failures.map((each) => ({ ...each, label: each.cause ? `${each.status}: ${shorten(each.cause, narrow() ? 24 : 64)}` : each.status }));
  const merged = [...Map.groupBy(rows, (each) => each.label)].map(([label, own]) => ({
    ...own[0], label, count: own.reduce((sum, each) => sum + each.count, 0),
  })).reverse();
  byId("chart-statuses").style.height = `${64 + 24 * merged.length}px`;
  chart("chart-statuses", [{
    type: "bar", orientation: "h", y: merged.map((each) => escaped(each.label)), x: merged.map((each) => each.count),
    text: merged.map((each) => String(each.count)), textposition: "auto", hovertext: merged.map((each) => wrapped(each.cause || each.status)),
    hovertemplate: "%{x}<br>%{hovertext}<extra></extra>",
    marker: { color: merged.map((each) => statusColour(each.status)) },
  }], { title: `${run.evaluations} evaluations`, xaxis: { title: { text: "variants" } }, yaxis: { ticksuffix: "  " } }, "statuses");
}

/** Running sums of a value over the time of the run. */
function summed(rows, at, value) {
  let total = 0;
  const sorted = rows.filter((each) => known(each[at])).sort((a, b) => a[at] - b[at]);
  return { x: sorted.map((each) => minutes(each[at])), y: sorted.map((each) => (total += value(each))) };
}

function budgetChart() {
  const step = { type: "scatter", mode: "lines", line: { shape: "hv", width: 2 } };
  const own = data.variants.filter((each) => !each.reused);
  const paid = data.calls.some((each) => each.dollars > 0);
  const used = paid ? "dollars" : "tokens", cost = data.calls.some((each) => each[used] > 0);
  const traces = [{ ...step, name: "evaluations", ...summed(own, "evaluated_s", () => 1) }];
  if (cost) traces.push({ ...step, name: used, yaxis: "y2", ...summed(data.calls, "at_s", (call) => call[used]) });
  const limits = ["evaluations", used].filter((name) => run.limits[name]).map((name) => ({
    type: "line", xref: "paper", x0: 0, x1: 1, yref: name === "evaluations" ? "y" : "y2", y0: run.limits[name], y1: run.limits[name],
    line: { dash: "dot", color: colour(name === "evaluations" ? "accent" : "path") },
  }));
  const second = { overlaying: "y", side: "right", title: { text: used }, rangemode: "tozero", tickmode: "auto", nticks: 6 };
  chart("chart-budget", traces, {
    title: limits.length ? "Budget (dotted: the limits)" : "Budget", shapes: limits,
    xaxis: { title: { text: "minutes since the start" } }, yaxis: { title: { text: "evaluations" }, rangemode: "tozero" },
    ...(cost ? { yaxis2: second, margin: { l: 48, r: 60, t: 10, b: 80 } } : {}),
  }, "budget");
}

function deviceChart() {
  const lanes = Math.max(data.time.devices, 1);
  const mean = lanes > 1 ? `: the mean of ${lanes} devices` : "";
  chart("chart-device", [{
    type: "bar", name: "device busy", x: data.rounds.map((each) => each.round),
    y: data.rounds.map((each) => (each.wall_s ? each.device_s / each.wall_s / lanes : null)), hovertemplate: "round %{x}: %{y:.0%}<extra></extra>",
  }], {
    title: `Share of each round's time in which devices were busy${mean}`,
    xaxis: { title: { text: "round" }, dtick: data.rounds.length > 20 ? undefined : 1 }, yaxis: { tickformat: ".0%", rangemode: "tozero" },
  }, "device");
}

/** The stages that take the time of the devices, the largest first, as in `summary.json`. */
function timeChart() {
  const seconds = (number) => `${number.toFixed(1)} s`;
  const { time } = data;
  const all = Object.values(time.stages_s).reduce((sum, each) => sum + each, 0);
  const stages = Object.entries(time.stages_s).filter(([, each]) => each >= all / 1000).sort((a, b) => a[1] - b[1]);
  byId("chart-time").style.height = `${64 + 24 * stages.length}px`;
  chart("chart-time", [{
    type: "bar", orientation: "h", y: stages.map(([name]) => name.replaceAll("_", " ")), x: stages.map(([, each]) => each),
    text: stages.map(([, each]) => `${seconds(each)}, ${percent(each / all)}`), textposition: "auto", hovertemplate: "%{y}: %{text}<extra></extra>",
  }], {
    title: `Where the ${seconds(all)} of the devices went, next to ${seconds(time.build_s)} of builds on the cores`,
    xaxis: { title: { text: "seconds" }, rangemode: "tozero" }, yaxis: { ticksuffix: "  " },
  }, "time");
}

function winnerChart() {
  const bars = [
    ["eager PyTorch", winner.eager_ms, "grey"], ["torch.compile", winner.compile_ms, "grey"],
    ["winner", winner.kernel_ms, "path"], ["roofline", winner.floor_ms, "accent"],
  ].filter(([, ms]) => known(ms)).reverse();
  const share = known(winner.roofline_share) ? `: the winner reaches ${percent(winner.roofline_share)} of the roofline` : "";
  chart("chart-winner", [{
    type: "bar", orientation: "h", y: bars.map(([name]) => name), x: bars.map(([, ms]) => ms), textposition: "auto",
    text: bars.map(([, ms]) => `${milliseconds(ms)} ms`), marker: { color: bars.map(([, , name]) => colour(name)) },
    hovertemplate: "%{y}: %{text}<extra></extra>",
  }], { title: `Milliseconds per call${share}`, xaxis: { title: { text: "ms" }, rangemode: "tozero" }, yaxis: { ticksuffix: "  " } }, "winner");
}

const ofVariants = (draw) => () => data.variants.length && draw();
const CHARTS = {
  "chart-winner": () => winner && winnerChart(), "chart-speedup": ofVariants(speedupChart), "chart-bests": ofVariants(bestsChart),
  "chart-gains": ofVariants(gainsChart), "chart-statuses": ofVariants(statusChart),
  "chart-budget": ofVariants(budgetChart), "chart-device": ofVariants(deviceChart),
  "chart-time": () => Object.keys(data.time.stages_s).length && timeChart(),
};
