/** A chart of memory over the tasks: without a plan, with the chosen plan, and as measured. */

import { size } from "../format.ts";
import { byteTicks } from "../ticks.ts";
import type { Frontier, Levels } from "./frontier_data.ts";
import { BOTTOM, draw, PANEL, TOP } from "./svg_elements.ts";

const LEFT = 58;
const RIGHT = 12;
/** Pixels that the label of the peak needs to the right of its ring. */
const NUMBER = 110;

/** Colours of measured curves, used in turn. */
const LINES = ["ink", "pgrad", "held", "work"];

export function lineColour(number: number): string {
  return LINES[number % LINES.length];
}

/** Draw the chart into `host`; `tell` is called with the text for the pointer's position, "" if it is outside. */
export function drawCurve(host: HTMLElement, data: Frontier, place: number, tell: (text: string) => void): void {
  host.textContent = "";
  const [plain] = data.plans;
  const plan = data.plans[place];
  const width = Math.max(host.clientWidth, 200);
  const chart = draw(host, "svg", { height: PANEL, role: "img", "aria-label": plan.sentences[0] });
  const bins = plain.levels.length;
  const highest = 1.08 * Math.max(...[...data.plans, ...data.measured].map((each) => each.peak), 1);
  const x = (at: number) => LEFT + ((width - LEFT - RIGHT) * at) / bins;
  const y = (bytes: number) => TOP + (PANEL - TOP - BOTTOM) * (1 - bytes / highest);
  for (const tick of byteTicks(highest, 5)) {
    draw(chart, "line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick), stroke: "var(--line)" });
    draw(chart, "text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, size(tick));
  }
  const path = (each: Levels) => {
    const steps = each.levels.map((level, at) => `V${y(level).toFixed(1)}H${x(at + 1).toFixed(1)}`);
    return `M${x(0)},${y(each.levels[0])}${steps.join("")}V${y(each.end).toFixed(1)}`;
  };
  const line = (each: Levels, colour: string, wide: number, more: Record<string, string>) =>
    draw(chart, "path", {
      d: path(each),
      fill: "none",
      stroke: `var(--${colour})`,
      "stroke-width": wide,
      "stroke-linejoin": "round",
      ...more,
    });
  draw(chart, "path", { d: `${path(plan)}V${y(0)}H${x(0)}Z`, fill: "var(--accent)", opacity: 0.1 });
  const most = Math.max(...data.plans.flatMap((each) => each.replays.map(([, bytes]) => bytes)), 1);
  for (const [at, bytes] of plan.replays) {
    const tall = 3 + (25 * bytes) / most;
    const wide = Math.max(1.5, x(1) - x(0) - 1);
    const box = { x: x(at), y: y(0) - tall, width: wide, height: tall };
    draw(chart, "rect", { ...box, fill: "var(--accent)", class: "recomputed" });
  }
  line(plain, "ink3", 1.6, { class: "plain" });
  line(plan, "accent", 2.4, { class: "planned" });
  data.measured.forEach((each, number) =>
    line(each, lineColour(number), 1.2, { "stroke-dasharray": "3 3", class: "measured" }),
  );
  const ring = (each: Levels, colour: string) => {
    const at = each.levels.indexOf(Math.max(...each.levels));
    const around = { r: 3.5, fill: "var(--panel)", stroke: `var(--${colour})`, "stroke-width": 2 };
    draw(chart, "circle", { cx: x(at + 0.5), cy: y(each.levels[at]), ...around });
    return x(at + 0.5);
  };
  ring(plain, "ink3");
  if (place) {
    const where = ring(plan, "accent");
    const before = where > width - NUMBER;
    const beside = { x: where + (before ? -8 : 8), y: y(plan.peak) - 6, "text-anchor": before ? "end" : "start" };
    const halo = "paint-order:stroke;stroke:var(--panel);stroke-width:3px";
    draw(chart, "text", { ...beside, class: "strong", style: halo }, size(plan.peak));
  }
  const below = (at: number, anchor: string, text: string) =>
    draw(chart, "text", { x: at, y: PANEL - 4, "text-anchor": anchor }, text);
  below(LEFT, "start", "0");
  below((LEFT + width - RIGHT) / 2, "middle", width < 360 ? "task" : "task, in the order in which they run");
  below(width - RIGHT, "end", String(data.tasks));
  const dashed = { stroke: "var(--ink3)", "stroke-dasharray": "2 2", visibility: "hidden" };
  const cursor = draw(chart, "line", { y1: TOP, y2: y(0), ...dashed });
  chart.addEventListener("pointermove", (event) => {
    const pixel = event.clientX - chart.getBoundingClientRect().left - LEFT;
    const at = Math.floor((pixel / (width - LEFT - RIGHT)) * bins);
    if (at < 0 || at >= bins) return;
    cursor.setAttribute("visibility", "visible");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, String(x(at + 0.5)));
    tell(said(data, place, at));
  });
  chart.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    tell("");
  });
}

/** Return the first task of a bin and the levels there. */
function said(data: Frontier, place: number, at: number): string {
  const [plain] = data.plans;
  const plan = data.plans[place];
  const recomputed = plan.replays.find(([bin]) => bin === at);
  return [
    `${data.names[at]}${data.size > 1 ? ` and ${data.size - 1} more` : ""}`,
    `without ${size(plain.levels[at])}`,
    `with this plan ${size(plan.levels[at])}`,
    ...data.measured.map((each) => `${each.name} ${size(each.levels[at])}`),
    ...(recomputed ? [`recomputes ${size(recomputed[1])}`] : []),
  ].join(" · ");
}
