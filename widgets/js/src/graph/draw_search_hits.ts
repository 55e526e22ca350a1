/** A ring around search matches that remains after the search field loses the focus. */

import type { Rect } from "../layout/layout_types.ts";
import type { Colours } from "../view_types.ts";
import { radiusOf } from "./draw_task.ts";
import type { Facts } from "./frame_state.ts";
import { grown } from "./spatial_index.ts";
import type { Pen } from "./pen.ts";

/** Distance from the task, inside of the ring of the selected task, pixels. */
const OUTSIDE = 1.8;
const CARD_RADIUS = 6;

export function drawFound(
  pen: Pen,
  colours: Colours,
  facts: Facts,
  spots: readonly number[],
  rectOf: (index: number) => Rect,
  scale: number,
): void {
  const { matches, scene } = facts;
  if (!matches) return;
  for (const index of spots) {
    const spot = scene.spots[index];
    if (spot.kind === "stub" || !spot.tasks.some((task) => matches[task])) continue;
    ring(pen, colours, rectOf(index), radiusOf(spot, rectOf(index)), scale);
  }
}

export function drawFoundCard(pen: Pen, colours: Colours, facts: Facts, card: number, rect: Rect, scale: number): void {
  if (facts.cardMatches?.[card]) ring(pen, colours, rect, CARD_RADIUS, scale);
}

function ring(pen: Pen, colours: Colours, rect: Rect, radius: number, scale: number): void {
  const pixel = Math.max(1, 0.9 / scale);
  pen.rounded(grown(rect, OUTSIDE * pixel), radius + OUTSIDE * pixel, { stroke: colours.saved, width: 1.6 * pixel });
}
