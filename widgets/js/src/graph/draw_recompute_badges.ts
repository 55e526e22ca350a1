/** Signs of recomputation at the lower right corner of a task: dropped, recomputed, newly kept. */

import type { Rect } from "../layout/layout_types.ts";
import { type Mark, markSays, type Sign, signsOf } from "../model/recompute.ts";
import type { Colours } from "../view_types.ts";
import { cardOpacity, type Facts, opacityOf } from "./frame_state.ts";
import type { Pen } from "./pen.ts";
import type { Spot } from "./scene_types.ts";

/** Side of a sign, and the gap between two, in pixels. */
const SIDE = 12;
const GAP = 2;
/** Pixels by which signs extend over the right edge. */
const OVER = 6;
/** Scale of signs beside chips. */
const SMALL = 0.6;
const DASHES = [2, 1.6];
/** Number of points of the arrow's arc. */
const CORNERS = 9;

/** The words of the legend. */
export const SIGN_WORDS: Record<Sign, string> = {
  dropped: "dropped",
  recomputed: "recomputed",
  kept: "newly kept",
};

export function drawMarks(pen: Pen, colours: Colours, facts: Facts, spot: Spot, rect: Rect): void {
  const mark = facts.marks.get(spot.task);
  if (!mark || spot.kind !== "task") return;
  pen.alpha = opacityOf(facts, spot.task);
  const size = spot.small ? SMALL : 1;
  drawSigns(pen, colours, [mark], rect.x + rect.width + (spot.small ? GAP : OVER), rect.y + rect.height, size);
  pen.alpha = 1;
}

/** Draw the signs of all tasks in a closed box. */
export function drawCardMarks(
  pen: Pen,
  colours: Colours,
  facts: Facts,
  index: number,
  rect: Rect,
  scale: number,
): void {
  const marks = facts.cardMarks.get(index);
  if (!marks) return;
  pen.alpha = cardOpacity(facts, index);
  const size = Math.min(Math.max(1, 0.9 / scale), rect.height / 30);
  drawSigns(pen, colours, marks, rect.x + rect.width - 6, rect.y + rect.height, size);
  pen.alpha = 1;
}

/** Draw signs that end at x, centred vertically on y. */
function drawSigns(pen: Pen, colours: Colours, marks: readonly Mark[], x: number, y: number, size: number): void {
  const side = SIDE * size;
  pen.begin(markSays(marks).join("\n"));
  for (const sign of signsOf(marks).toReversed()) {
    x -= side;
    drawSign(pen, colours, sign, x + side / 2, y, size);
    x -= GAP * size;
  }
  pen.end();
}

/** Draw one sign centred on (x, y). */
export function drawSign(pen: Pen, colours: Colours, sign: Sign, x: number, y: number, size: number): void {
  const half = (SIDE / 2) * size;
  const rect = { x: x - half, y: y - half, width: 2 * half, height: 2 * half };
  const dash = sign === "dropped" ? DASHES.map((length) => length * size) : undefined;
  const fill = sign === "kept" ? colours.saved : colours.panel;
  pen.rounded(rect, 3 * size, { fill: colours.panel });
  pen.rounded(rect, 3 * size, { fill, stroke: colours.saved, width: 1.3 * size, dash });
  if (sign === "kept") {
    const arm = 3 * size;
    const paint = { stroke: colours.panel, width: 1.6 * size };
    pen.lines([x - arm, y, x + arm, y], paint);
    pen.lines([x, y - arm, x, y + arm], paint);
  } else if (sign === "recomputed") drawArrow(pen, colours, x, y, 3 * size, size);
}

/** Draw three quarters of a circle with an arrowhead. */
function drawArrow(pen: Pen, colours: Colours, x: number, y: number, radius: number, size: number): void {
  const corners = Array.from({ length: CORNERS }, (_, at) => (-0.25 + (1.5 * at) / (CORNERS - 1)) * Math.PI);
  const arc = corners.flatMap((angle) => [x + radius * Math.cos(angle), y + radius * Math.sin(angle)]);
  pen.lines(arc, { stroke: colours.ink, width: 1.3 * size, round: true });
  const [endX, endY] = arc.slice(0, 2);
  const tip = [endX + 1.6 * size, endY + 1.5 * size, endX + 1.4 * size, endY - 2.6 * size, endX - 2.4 * size, endY + 0.6 * size];
  pen.lines(tip, { fill: colours.ink });
}
