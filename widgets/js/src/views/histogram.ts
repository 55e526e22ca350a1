/** Drawing of a gradient's histogram, logarithmic on both sides of zero with a broken axis. */

import { svg } from "../dom.ts";
import type { Gradient } from "../model/document.ts";
import { barsOf, barsPerSide, type Decades, power, summary } from "../model/histogram.ts";

const WIDTH = 108;
const HEIGHT = 44;
const BASE = 32;
/** Space above the bars for the sign of the scale. */
const TOP = 10;
/** Half of the break around zero. */
const GAP = 6;
const ZERO = 4;
const SIDE = WIDTH / 2 - GAP;
const MIDDLE = WIDTH / 2;

export function histogram(gradient: Gradient, decades: Decades): SVGSVGElement {
  const said = summary(gradient, decades);
  const made = svg("svg", {
    class: "histogram", width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said,
  });
  const { bars, zero } = barsOf(gradient, decades);
  made.append(svg("title", {}, said), axis());
  const steps = barsPerSide(decades);
  for (const { step, isNegative, height } of bars) {
    const [near, far] = step < 0 ? [ZERO / 2, GAP] : [GAP + edge(step, steps), GAP + edge(step + 1, steps)];
    made.append(bar(isNegative ? MIDDLE - far : MIDDLE + near, far - near, height, "var(--ink3)"));
  }
  if (zero) made.append(bar(MIDDLE - ZERO / 2, ZERO, zero, "var(--ink)"));
  const most = power(decades.most) + (decades.isBeyond ? "+" : "");
  made.append(
    label(0, "start", `−${most}`),
    label(MIDDLE, "middle", `±${power(decades.least)}`),
    label(WIDTH, "end", most),
    svg("text", { x: 0, y: 8 }, "log"),
  );
  return made;
}

/** Return the left edge of a bar in whole pixels; a gap of half a pixel would look like missing data. */
function edge(step: number, steps: number): number {
  return Math.round((SIDE * step) / steps);
}

function bar(x: number, width: number, height: number, fill: string): SVGRectElement {
  const tall = Math.max(1, height * (BASE - TOP));
  return svg("rect", { x, y: BASE - tall, width: Math.max(width, 1), height: tall, fill, "shape-rendering": "crispEdges" });
}

/** Return two lines with a break between them, and the sign of a break at their ends. */
function axis(): SVGPathElement {
  const [left, right] = [MIDDLE - GAP, MIDDLE + GAP];
  const y = BASE + 0.5;
  const d = `M0 ${y}H${left}M${right} ${y}H${WIDTH}M${left - 1} ${y + 3}l2 -6M${right - 1} ${y + 3}l2 -6`;
  return svg("path", { d, fill: "none", stroke: "var(--line2)" });
}

function label(x: number, anchor: string, text: string): SVGTextElement {
  return svg("text", { x, y: HEIGHT - 1, "text-anchor": anchor }, text);
}
