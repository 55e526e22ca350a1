/** Glyphs of the four states, of breakpoints, of foldable boxes and of stubs. */

import type { PlacedStub } from "../layout/layout_types.ts";
import type { ShownState } from "../model/replay.ts";
import type { Colours } from "../view_types.ts";
import type { Pen } from "./pen.ts";

/** Largest queue place that is written on the disc. */
export const LAST_NUMBERED = 9;

export interface GlyphFacts {
  /** For waiting tasks: share of the inputs that have arrived. */
  share?: number;
  /** For ready tasks: place in the queue; 0 for none. */
  place?: number;
  /** Colour that replaces the state's own. */
  ink?: string;
}

/**
 * Draw the glyph of a state. Waiting: a ring filled by its share. Ready: a disc with its place. Running: ▶. Done: ✓.
 * Planned: a hollow ✓. Failed: a cross. `radius` is about 4.
 */
export function drawGlyph(
  pen: Pen,
  colours: Colours,
  state: ShownState,
  x: number,
  y: number,
  radius: number,
  facts: GlyphFacts = {},
): void {
  const { share = 0, place = 0, ink } = facts;
  if (state === "waiting") {
    pen.circle(x, y, radius - 0.6, { stroke: ink ?? colours.ink3, width: 1.3 });
    if (share > 0) pen.sector(x, y, radius - 0.6, share, ink ?? colours.ink3);
  } else if (state === "ready") {
    const numbered = place > 0 && place <= LAST_NUMBERED;
    pen.circle(x, y, numbered ? radius + 1.6 : radius - 0.6, { fill: ink ?? colours.accent });
    if (numbered) {
      pen.text(x, y, [{ text: String(place), fill: colours["accent-ink"], size: 9, weight: 600 }], "middle");
    }
  } else if (state === "running") {
    const corners = [x - radius * 0.7, y - radius, x + radius, y, x - radius * 0.7, y + radius];
    pen.lines(corners, { fill: ink ?? colours["accent-ink"] });
  } else if (state === "failed") {
    const arm = radius * 0.75;
    const paint = { stroke: colours.bad, width: 1.8, round: true };
    pen.lines([x - arm, y - arm, x + arm, y + arm], paint);
    pen.lines([x - arm, y + arm, x + arm, y - arm], paint);
  } else {
    const corners = [
      x - radius * 0.8, y + 0.2,
      x - radius * 0.2, y + radius * 0.65,
      x + radius * 0.9, y - radius * 0.65,
    ];
    const stroke = ink ?? colours["done-ink"];
    pen.lines(corners, { stroke, width: state === "planned" ? 3.4 : 1.5, round: true });
    if (state === "planned") pen.lines(corners, { stroke: colours.panel, width: 1.6, round: true });
  }
}

/** Draw a breakpoint, hollow if it is disabled, with a rim that separates it from the content below. */
export function drawBreakpoint(
  pen: Pen,
  colours: Colours,
  x: number,
  y: number,
  radius: number,
  enabled: boolean,
): void {
  pen.lines(octagon(x, y, radius * 1.33), { fill: colours.panel });
  pen.lines(octagon(x, y, radius), { fill: colours.ink });
  if (!enabled) pen.lines(octagon(x, y, radius * 0.6), { fill: colours.panel });
}

function octagon(x: number, y: number, radius: number): number[] {
  return Array.from({ length: 8 }, (_, corner) => Math.PI / 8 + (corner * Math.PI) / 4).flatMap((angle) => [
    x + radius * Math.cos(angle),
    y + radius * Math.sin(angle),
  ]);
}

/** Draw a chevron: down if a click closes the box, right if it opens the box. */
export function drawChevron(pen: Pen, colours: Colours, x: number, y: number, open: boolean): void {
  const corners = open
    ? [x - 3, y - 1.5, x, y + 1.8, x + 3, y - 1.5]
    : [x - 1.5, y - 3, x + 1.8, y, x - 1.5, y + 3];
  pen.lines(corners, { stroke: colours.ink2, width: 1.4, round: true });
}

/** Draw an arrow sideways (a parameter whose pill is elsewhere), down (to others) or up (from others). */
export function drawStubArrow(pen: Pen, colours: Colours, kind: PlacedStub["kind"], x: number, y: number): void {
  const paint = { stroke: colours.ink3, width: 1.2, round: true };
  if (kind === "parameter") {
    pen.lines([x - 3, y + 3, x + 2.8, y - 2.8], paint);
    pen.lines([x - 0.8, y - 2.8, x + 2.8, y - 2.8, x + 2.8, y + 0.8], paint);
  } else {
    const down = kind === "to" ? 1 : -1;
    pen.lines([x, y - 3.5 * down, x, y + 3 * down], paint);
    pen.lines([x - 2.8, y + 0.2 * down, x, y + 3 * down, x + 2.8, y + 0.2 * down], paint);
  }
}
