// Shared by pages with several arms: their colours, a legend that hides them, figures with intervals.

const UNIT_WORDS = { evaluations: "evaluations", device_s: "device seconds", tokens: "tokens", dollars: "dollars" };
const DASHES = [["solid", ""], ["dash", "7 4"], ["dot", "2 3"], ["dashdot", "7 3 2 3"]];
const COLOURS = 9;
const armNames = data.arms.map((each) => each.name);
const armAt = new Map(armNames.map((name, at) => [name, at]));
const armColour = (name) => colour(`arm-${armAt.get(name) % COLOURS}`);
const armDash = (name) => DASHES[armAt.get(name) % DASHES.length];
const armText = (name) => escaped(shorten(name, narrow() ? 22 : 40));
const hiddenArms = new Set();

const figure = (each, show = times) => {
  if (!known(each.value)) return "-";
  return known(each.low) && known(each.high) ? `${show(each.value)} [${show(each.low)}, ${show(each.high)}]` : show(each.value);
};

/** How a winner does where no search looked: its speedup, or in how many configurations it is right. */
const heldOut = (each) => (!each.held_out.length ? "" : each.only_listed ? `${each.held_out_passed} of ${each.held_out.length} right` : times(each.held_out_speedup));
const heldOutList = (each) => each.held_out.map((one) => `${one.name}: ${one.status}${one.status === "correct" ? `, ${times(one.speedup)}` : ""}`).join("\n");
const amount = (value) => (Number.isInteger(value) ? String(value) : digits(value, 4));

/** Buttons that show and hide the arms; a double click shows only one. `redraw` draws the charts again. */
function legendOf(redraw) {
  byId("legend").replaceChildren(...armNames.map((name) => {
    const line = element("svg", { width: 30, height: 10, "aria-hidden": "true" });
    line.append(element("line", {
      x1: 1, y1: 5, x2: 29, y2: 5, stroke: armColour(name), "stroke-width": 3, "stroke-dasharray": armDash(name)[1] || null,
    }));
    const toggle = (alone) => {
      if (alone) armNames.forEach((each) => (each === name ? hiddenArms.delete(each) : hiddenArms.add(each)));
      else if (!hiddenArms.delete(name)) hiddenArms.add(name);
      [...byId("legend").children].forEach((button, at) => button.setAttribute("aria-pressed", !hiddenArms.has(armNames[at])));
      redraw();
    };
    return element("button", {
      type: "button", "aria-pressed": !hiddenArms.has(name), onclick: () => toggle(false), ondblclick: () => toggle(true),
    }, line, name);
  }));
}
