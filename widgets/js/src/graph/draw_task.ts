/** Drawing of tasks, pills and stubs. States differ in fill, outline and glyph. */

import type { Rect } from "../layout/layout_types.ts";
import { createdAt } from "../model/creation.ts";
import type { ShownState } from "../model/replay.ts";
import type { Colours } from "../view_types.ts";
import { creationStep, inked, shaded } from "./creation_shade.ts";
import { breakpointOf, type Facts, opacityOf, shareOf, stateOf } from "./frame_state.ts";
import { drawBreakpoint, drawGlyph, drawStubArrow } from "./glyphs.ts";
import { grown } from "./spatial_index.ts";
import type { Paint, Pen, Span } from "./pen.ts";
import type { Spot } from "./scene_types.ts";

export const LABEL = 11;
/** Minimum size of text on the screen. */
export const SMALLEST_TEXT = 6;
/** Minimum scale at which chips and dots have glyphs. */
const SMALLEST_CHIP = 0.45;
/** Minimum scale at which corners are rounded. */
const ROUNDED_FROM = 0.3;
/** Minimum scale at which a task can look hollow. */
const HOLLOW_FROM = 0.15;
const RING = 3.5;
/** Dash pattern of the outline of planned tasks. */
const DASHES = [2.5, 2];

export function isFar(spot: Spot, scale: number): boolean {
  return spot.small ? scale < SMALLEST_CHIP : LABEL * scale < SMALLEST_TEXT;
}

/** Return the fill and outline of a state. */
export function paintOf(colours: Colours, state: ShownState): Paint {
  if (state === "waiting") return { fill: colours.panel, stroke: colours.line2, width: 1 };
  if (state === "ready") return { fill: colours["accent-soft"], stroke: colours.accent, width: 1.6 };
  if (state === "planned") return { fill: colours.panel, stroke: colours["done-ink"], width: 1, dash: DASHES };
  if (state === "failed") return { fill: colours.panel, stroke: colours.bad, width: 1.6 };
  return { fill: state === "running" ? colours.accent : colours.done };
}

/** Draw a task at a readable scale. */
export function drawSpot(pen: Pen, colours: Colours, facts: Facts, spot: Spot, rect: Rect): void {
  pen.alpha = opacityOf(facts, spot.task);
  if (spot.kind === "stub") drawStub(pen, colours, spot, rect);
  else drawTask(pen, colours, facts, spot, rect);
  pen.alpha = 1;
}

function drawTask(pen: Pen, colours: Colours, facts: Facts, spot: Spot, rect: Rect): void {
  const state = stateOf(facts, spot);
  const radius = radiusOf(spot, rect);
  if (spot.tasks.includes(facts.ringed)) drawRing(pen, colours, state, rect, radius, 1);
  // If only a plan or a simulation runs the task, it is drawn as ready, as in the queue.
  const isPlan = state === "running" && facts.unreal !== null;
  const look = isPlan ? "ready" : state;
  const step = creationStep(facts, createdAt(facts.scene.graph, spot.task));
  const { dash, ...paint } = shaded(colours, step, paintOf(colours, look));
  pen.rounded(rect, radius, spot.small ? paint : { ...paint, dash }); // dashes around a chip would be unreadable
  if (facts.hovered.some((task) => spot.tasks.includes(task))) pen.rounded(rect, radius, { stroke: colours.ink, width: 1.2 });
  const middle = rect.y + rect.height / 2;
  const share = state === "waiting" ? shareOf(facts, spot.task) : 0;
  const place = facts.queuePlaces.get(spot.task) ?? 0;
  const ink = isPlan ? colours.accent : undefined;
  if (spot.small) {
    const size = rect.width / 4;
    const next = state === "ready" && place === 1;
    drawGlyph(pen, colours, state, rect.x + rect.width / 2, middle, next ? size * 1.4 : size, { share, ink });
  } else {
    drawGlyph(pen, colours, state, rect.x + 11, middle, 3.8, { share, place, ink });
    pen.text(rect.x + 20, middle, inked(colours, label(colours, spot, look), step, look));
  }
  const breakpoint = breakpointOf(facts, spot);
  if (breakpoint !== undefined) {
    drawBreakpoint(pen, colours, rect.x - (spot.small ? 0 : 3), middle, spot.small ? 3.6 : 4.8, breakpoint);
  }
}

export function labelInk(colours: Colours, state: ShownState): string {
  const inks = {
    waiting: colours.ink2,
    ready: colours.ink,
    running: colours["accent-ink"],
    done: colours["done-ink"],
    planned: colours.ink2,
    failed: colours.bad,
  };
  return inks[state];
}

/** Return the colour of secondary text after the label: muted if it contrasts with the fill. */
export function captionInk(colours: Colours, state: ShownState): string {
  return state === "running" || state === "done" ? labelInk(colours, state) : colours.ink3;
}

function label(colours: Colours, spot: Spot, state: ShownState): Span[] {
  const weight = state === "ready" || state === "running" || state === "failed" ? 500 : 400;
  const spans: Span[] = [{ text: spot.label, fill: labelInk(colours, state), size: LABEL, weight }];
  if (spot.caption) {
    spans.push({ text: spot.caption, fill: captionInk(colours, state), size: LABEL, weight: 400, gap: 7 });
  }
  return spans;
}

function drawStub(pen: Pen, colours: Colours, spot: Spot, rect: Rect): void {
  const paint = { fill: colours.panel, stroke: colours.line2, width: 1, dash: [3, 2.5] };
  pen.rounded(rect, rect.height / 2, paint);
  if (spot.small) return;
  const middle = rect.y + rect.height / 2;
  drawStubArrow(pen, colours, spot.stub ?? "parameter", rect.x + 11, middle);
  pen.text(rect.x + 21, middle, [{ text: spot.label, fill: colours.ink2, size: LABEL, weight: 400 }]);
}

export function radiusOf(spot: Spot, rect: Rect): number {
  if (spot.kind !== "task") return rect.height / 2;
  return spot.small ? 3 : 5;
}

/** Draw the ring around the selected or running task. `pixel` is the size of a screen pixel. */
export function drawRing(
  pen: Pen,
  colours: Colours,
  state: ShownState,
  rect: Rect,
  radius: number,
  pixel: number,
): void {
  const stroke = state === "running" ? colours.accent : state === "failed" ? colours.bad : colours.ink;
  pen.rounded(grown(rect, RING * pixel), radius + RING * pixel, { stroke, width: 1.5 * pixel });
}

interface Alike {
  state: ShownState;
  /** Step of the creation time, or -1. */
  step: number;
  alpha: number;
  radius: number;
  rects: Rect[];
}

/**
 * Draw tasks at a scale too small to be read: waiting ones hollow, done ones dark, planned ones half as dark, ready and
 * running ones in the accent colour. Tasks that look alike share a path.
 */
export function drawFar(
  pen: Pen,
  colours: Colours,
  facts: Facts,
  rectOf: (index: number) => Rect,
  seen: readonly number[],
  scale: number,
): void {
  const { spots } = facts.scene;
  const groups: Alike[] = [];
  for (const index of seen) {
    const spot = spots[index];
    const state = spot.kind === "stub" ? "waiting" : stateOf(facts, spot);
    const alpha = opacityOf(facts, spot.task) * (spot.kind === "stub" || state === "planned" ? 0.5 : 1);
    const rect = rectOf(index);
    const radius = scale < ROUNDED_FROM ? 0 : radiusOf(spot, rect);
    const step = spot.kind === "stub" ? -1 : creationStep(facts, createdAt(facts.scene.graph, spot.task));
    const group = groups.find((each) => each.state === state && each.step === step && each.alpha === alpha && each.radius === radius);
    if (group) group.rects.push(rect);
    else groups.push({ state, step, alpha, radius, rects: [rect] });
  }
  groups.sort((one, other) => FAR_ORDER.indexOf(one.state) - FAR_ORDER.indexOf(other.state));
  for (const { state, step, alpha, radius, rects } of groups) {
    pen.alpha = alpha;
    pen.rects(rects, radius, shaded(colours, step, farPaint(colours, state, scale), 1));
  }
  pen.alpha = 1;
  drawFarMarks(pen, colours, facts, rectOf, seen, scale);
}

const FAR_ORDER: readonly ShownState[] = ["waiting", "planned", "done", "ready", "running", "failed"];

export function farPaint(colours: Colours, state: ShownState, scale: number): Paint {
  const pixel = Math.max(1, 0.9 / scale);
  if (state === "waiting" && scale < HOLLOW_FROM) return { fill: colours.line2 };
  if (state === "waiting") return { fill: colours.panel, stroke: colours.line2, width: pixel };
  if (state === "done" || state === "planned") return { fill: colours["done-ink"] };
  const colour = state === "failed" ? colours.bad : colours.accent;
  return { fill: colour, stroke: colour, width: state === "ready" ? pixel : 5 * pixel };
}

/** Draw the ring, the hovered outline and the breakpoints of tasks at a small scale. */
function drawFarMarks(
  pen: Pen,
  colours: Colours,
  facts: Facts,
  rectOf: (index: number) => Rect,
  drawn: readonly number[],
  scale: number,
): void {
  const { spots, spotOf } = facts.scene;
  const far = (task: number) => {
    const index = task < 0 ? -1 : spotOf[task];
    return index >= 0 && isFar(spots[index], scale) ? { spot: spots[index], rect: rectOf(index) } : null;
  };
  const ringed = far(facts.ringed);
  if (ringed) {
    const { spot, rect } = ringed;
    drawRing(pen, colours, stateOf(facts, spot), rect, radiusOf(spot, rect), Math.max(1, 0.9 / scale));
  }
  for (const hovered of facts.hovered.map(far)) {
    if (hovered) pen.rounded(hovered.rect, radiusOf(hovered.spot, hovered.rect), { stroke: colours.ink, width: 1.4 / scale });
  }
  for (const index of facts.breakpoints.size ? drawn : []) {
    const breakpoint = breakpointOf(facts, spots[index]);
    if (breakpoint === undefined || spots[index].kind === "stub") continue;
    const { x, y, height } = rectOf(index);
    drawBreakpoint(pen, colours, x - 3 / scale, y + height / 2, Math.min(12, 3.6 / scale), breakpoint);
  }
}
