/** A chart of what each plan costs: peak over the extra time of a step. */

import type { Frontier } from "./frontier_data.ts";
import { BOTTOM, draw, PANEL, TOP } from "./svg_elements.ts";

const LEFT = 46;
const RIGHT = 14;
/** Height in pixels, the same as that of the curve chart with its line of text. */
const TALL = PANEL + 21;

/** Draw the chart into `host`; a click on a plan calls `choose` with its place. */
export function drawPrice(host: HTMLElement, data: Frontier, place: number, choose: (place: number) => void): void {
  host.textContent = "";
  const { plans } = data;
  const width = Math.max(host.clientWidth, 180);
  const chart = draw(host, "svg", { height: TALL });
  const longest = Math.max(...plans.map((each) => each.seconds), 1e-9);
  const x = (seconds: number) => LEFT + ((width - LEFT - RIGHT) * seconds) / (1.06 * longest);
  const y = (bytes: number) => TOP + (TALL - TOP - BOTTOM) * (1 - bytes / (1.08 * plans[0].peak));
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const at = y(share * plans[0].peak);
    draw(chart, "line", { x1: LEFT, x2: width - RIGHT, y1: at, y2: at, stroke: "var(--line)" });
    draw(chart, "text", { x: LEFT - 8, y: at + 4, "text-anchor": "end" }, `${Math.round(100 * share)} %`);
  }
  const points = plans.map((each) => `${x(each.seconds)},${y(each.peak)}`).join(" ");
  draw(chart, "polyline", { points, fill: "none", stroke: "var(--line2)", "stroke-width": 1.4 });
  plans.forEach((each, number) => {
    const chosen = number === place;
    const dot = draw(chart, "circle", {
      cx: x(each.seconds),
      cy: y(each.peak),
      r: chosen ? 6 : 4,
      class: "dot",
      fill: `var(--${chosen ? "accent" : "panel"})`,
      stroke: `var(--${chosen ? "accent" : "ink3"})`,
      "stroke-width": 1.6,
      style: "cursor:pointer",
    });
    draw(dot, "title", {}, each.sentences.join("\n"));
    dot.addEventListener("click", () => choose(number));
  });
  if (data.asked) {
    const asked = plans[data.asked];
    const [left, top] = [x(asked.seconds), y(asked.peak)];
    const ring = { r: 9, fill: "none", stroke: "var(--accent)", "pointer-events": "none" };
    draw(chart, "circle", { cx: left, cy: top, ...ring });
    draw(chart, "text", { x: left - 13, y: top + 16, "text-anchor": "end" }, "requested");
  }
  const most = `+${Number((1000 * longest).toPrecision(2))} ms a step`;
  draw(chart, "text", { x: LEFT, y: TALL - 4 }, "0 ms");
  draw(chart, "text", { x: width - RIGHT, y: TALL - 4, "text-anchor": "end" }, most);
}
