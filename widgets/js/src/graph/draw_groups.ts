/** Outlines around the members of groups, and their names. Forward groups have dashed outlines and hollow names. */

import type { Rect } from "../layout/layout_types.ts";
import type { Outline } from "../model/outlines.ts";
import type { Colours } from "../view_types.ts";
import { cardOpacity, type Facts, opacityOf } from "./frame_state.ts";
import { grown } from "./spatial_index.ts";
import type { Grouping } from "./group_outlines.ts";
import type { Paint, Pen, Span } from "./pen.ts";

/** Distance from a task to its outline, and between outlines, pixels. */
const GAP = 2.6;
const NEXT = 3.2;
const WIDTH = 1.8;
const LIT_WIDTH = 3;
/** Opacity of the other groups while one is selected. */
const FAINT = 0.22;
const DASHES = [4, 2.4];
/** Size of a name's square, pixels. */
const HEIGHT = 12;
const LETTER = 9;
/** Distance by which a name exceeds the side, pixels. */
const OVER = 6;

export function hueOf(colours: Colours, { hue, name }: Outline): string {
  return name ? colours[`hue${hue}` as keyof Colours] : colours.ink3;
}

/** Draw the outlines below the tasks; many outlines of one group form one path. */
export function drawOutlines(
  pen: Pen,
  colours: Colours,
  facts: Facts,
  seen: readonly number[],
  rectOf: (index: number) => Rect,
  scale: number,
): void {
  const { grouping, scene } = facts;
  if (!grouping) return;
  const pixel = pixelAt(scale);
  const alike = new Map<string, { outline: Outline; alpha: number; round: number; rects: Rect[] }>();
  for (const index of seen) {
    grouping.spots.get(index)?.forEach((outline, place) => {
      const spot = scene.spots[index];
      const far = (GAP + place * NEXT) * pixel;
      const rect = grown(rectOf(index), far);
      const alpha = opacityOf(facts, spot.task);
      const round = (spot.kind === "task" ? (spot.small ? 3 : 5) : spot.rect.height / 2) + far;
      const key = `${outline.index} ${alpha} ${round}`;
      const known = alike.get(key);
      if (known) known.rects.push(rect);
      else alike.set(key, { outline, alpha, round, rects: [rect] });
    });
  }
  for (const { outline, alpha, round, rects } of alike.values()) {
    pen.alpha = alpha * shareOf(grouping, outline);
    pen.rects(rects, round, paintOf(colours, grouping, outline, pixel));
  }
  pen.alpha = 1;
}

/** Draw the names at the corners of tasks; for chips, beside the last one in the row. */
export function drawNames(
  pen: Pen,
  colours: Colours,
  facts: Facts,
  near: readonly number[],
  rectOf: (index: number) => Rect,
): void {
  const { grouping, scene } = facts;
  if (!grouping) return;
  for (const index of near) {
    const found = grouping.spots.get(index) ?? [];
    const { small, task } = scene.spots[index];
    const named = found.filter((outline) => outline.name && (!small || grouping.named.get(outline)?.has(index)));
    if (!named.length) continue;
    pen.alpha = opacityOf(facts, task);
    const { x, y, width, height } = rectOf(index);
    const right = x + width + OVER;
    drawRowOfNames(pen, colours, grouping, named, right, small ? y + height / 2 : y, 1, small);
  }
  pen.alpha = 1;
}

/**
 * Draw the names of the groups in a closed box along its upper edge, and the outline of the selected group around it.
 */
export function drawCardGroups(
  pen: Pen,
  colours: Colours,
  facts: Facts,
  index: number,
  rect: Rect,
  scale: number,
): void {
  const { grouping } = facts;
  const found = grouping?.cards.get(index);
  if (!grouping || !found) return;
  const pixel = pixelAt(scale);
  pen.alpha = cardOpacity(facts, index);
  const { lit } = grouping;
  if (lit && found.includes(lit)) {
    pen.rounded(grown(rect, GAP * pixel), 8 + GAP * pixel, paintOf(colours, grouping, lit, pixel));
  }
  const size = Math.min(pixel, rect.height / 30);
  const most = Math.max(1, Math.floor((rect.width - 12) / ((HEIGHT + 2) * size)));
  const named = found.filter(({ name }) => name);
  if (size * LETTER * scale >= 5) {
    drawRowOfNames(pen, colours, grouping, named.slice(0, most), rect.x + rect.width - 6, rect.y, size, false);
  }
  pen.alpha = 1;
}

/** Draw names in a row that starts, or else ends, at x; y is their middle. */
function drawRowOfNames(
  pen: Pen,
  colours: Colours,
  grouping: Grouping,
  outlines: readonly Outline[],
  x: number,
  y: number,
  size: number,
  begins: boolean,
): void {
  const alpha = pen.alpha;
  for (const outline of begins ? outlines : outlines.toReversed()) {
    const hue = hueOf(colours, outline);
    const hollow = outline.direction === "forward";
    const name: Span = { text: outline.name, fill: hollow ? hue : colours.panel, size: LETTER * size, weight: 600 };
    const width = Math.max(HEIGHT * size, pen.measure([name]) + 6 * size);
    if (!begins) x -= width;
    const rect = { x, y: y - (HEIGHT / 2) * size, width, height: HEIGHT * size };
    pen.alpha = 1; // opaque, to hide the content below
    pen.rounded(rect, 3 * size, { fill: colours.panel });
    pen.alpha = alpha * shareOf(grouping, outline);
    pen.rounded(rect, 3 * size, hollow ? { fill: colours.panel, stroke: hue, width: 1.2 * size } : { fill: hue });
    pen.text(x + width / 2, y, [name], "middle");
    x += begins ? width + 2 * size : -2 * size;
  }
  pen.alpha = alpha;
}

function paintOf(colours: Colours, { lit }: Grouping, outline: Outline, pixel: number): Paint {
  const width = (lit === outline ? LIT_WIDTH : WIDTH) * pixel;
  const dash = outline.direction === "forward" || !outline.name ? DASHES.map((each) => each * pixel) : undefined;
  return { stroke: hueOf(colours, outline), width, dash };
}

function shareOf({ lit }: Grouping, outline: Outline): number {
  return lit === null || lit === outline ? 1 : FAINT;
}

/** Return the picture pixels per screen pixel if the picture is drawn small. */
function pixelAt(scale: number): number {
  return Math.max(1, 0.9 / scale);
}
