/** The time axis that memory and lifetimes share: gutters, playhead, hover cursor, and scrubbing by pointer. */

import type { Store } from "../store.ts";
import type { Colours, Stage } from "../view.ts";
import { smallType } from "./surface.ts";
import { grouped } from "../text.ts";

/** The task at place k is drawn from `x(k)` to `x(k + 1)`. */
export interface TimeAxis {
  /** CSS pixels from the panel's left edge. */
  left: number;
  right: number;
  places: number;
}

/** Width of the band below which the playhead is a line alone. */
const LEAST_BAND = 3;
const FLAG_HEIGHT = 16;
/** Between two numbers, and from the axis's start to the second one's middle, pixels. */
const LEAST_TICK = 52;
const LEAST_FIRST = 46;

/** The axis of a panel that is so wide; its gutters are those of the style sheet. */
export function readAxis(panel: HTMLElement, width: number, places: number): TimeAxis {
  const style = getComputedStyle(panel);
  const gutter = (name: string) => Number.parseFloat(style.getPropertyValue(name)) || 0;
  return { left: gutter("--gl"), right: Math.max(width - gutter("--gr"), gutter("--gl") + 1), places };
}

export function x(axis: TimeAxis, time: number): number {
  return axis.left + ((axis.right - axis.left) * time) / Math.max(axis.places, 1);
}

/** The place of the task at a pixel, `places` right of the last one. */
export function placeAt(axis: TimeAxis, pixel: number): number {
  if (pixel >= axis.right) return axis.places;
  const share = (pixel - axis.left) / (axis.right - axis.left);
  return Math.max(0, Math.min(axis.places - 1, Math.floor(share * axis.places)));
}

/** Up to which time things have run: a live session's front, or a branch's; where it is played, up to the position. */
export function hasRun(store: Store): number {
  return store.isLive || store.branch ? store.reached : store.ran;
}

/** The middle of the task at a place; the end after the last one. */
function middle(axis: TimeAxis, place: number): number {
  return x(axis, Math.min(place + 0.5, axis.places));
}

/** The playhead over the task at the position, and the dotted line under the pointer. */
export function drawCursor(
  context: CanvasRenderingContext2D,
  axis: TimeAxis,
  state: { t: number; hoveredT: number | null },
  colours: Colours,
  top: number,
  bottom: number,
): void {
  const place = Math.min(state.t, axis.places);
  const from = x(axis, place);
  const to = x(axis, Math.min(place + 1, axis.places));
  if (to - from > LEAST_BAND) {
    context.globalAlpha = 0.14;
    context.fillStyle = colours.accent;
    context.fillRect(from, top, to - from, bottom - top);
    context.globalAlpha = 1;
  }
  vertical(context, (from + to) / 2, top, bottom, colours.accent, 1.5);
  if (state.hoveredT === null) return;
  context.setLineDash([2, 2]);
  vertical(context, middle(axis, state.hoveredT), top, bottom, colours.ink2, 1);
  context.setLineDash([]);
}

function vertical(
  context: CanvasRenderingContext2D,
  at: number,
  top: number,
  bottom: number,
  colour: string,
  width: number,
): void {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.beginPath();
  context.moveTo(at, top);
  context.lineTo(at, bottom);
  context.stroke();
}

/** The numbers of tasks below the axis, the playhead's own one in a flag that the others leave room for. */
export function drawTaskNumbers(
  context: CanvasRenderingContext2D,
  axis: TimeAxis,
  position: number,
  colours: Colours,
  top: number,
): void {
  const baseline = top + FLAG_HEIGHT / 2 + 0.5;
  const flag = position >= axis.places ? "end" : grouped(position + 1);
  context.font = smallType(600);
  context.textAlign = "center";
  const width = context.measureText(flag).width + 10;
  const at = middle(axis, position);
  context.fillStyle = colours.accent;
  context.beginPath();
  context.roundRect(at - width / 2, top, width, FLAG_HEIGHT, 4);
  context.fill();
  context.fillStyle = colours["accent-ink"];
  context.fillText(flag, at, baseline);
  context.font = smallType(400);
  context.fillStyle = colours.ink3;
  for (const number of taskTicks(axis)) {
    const text = number === 1 ? "task 1" : grouped(number);
    const half = context.measureText(text).width / 2;
    const centre = number === 1 ? Math.max(middle(axis, 0), axis.left + half) : middle(axis, number - 1);
    if (Math.abs(centre - at) > half + width / 2 + 6) context.fillText(text, centre, baseline);
  }
}

/** 1, and the multiples of a round number of tasks: those that have room. */
export function taskTicks(axis: TimeAxis): number[] {
  const perTask = (axis.right - axis.left) / Math.max(axis.places, 1);
  let step = 1;
  while (step * perTask < LEAST_TICK) step *= String(step).startsWith("2") ? 2.5 : 2;
  const found = axis.places ? [1] : [];
  for (let number = step; number <= axis.places; number += step) {
    if (number > 1 && (number - 0.5) * perTask >= LEAST_FIRST) found.push(number);
  }
  return found;
}

/** A click or a drag on the canvas shows that position; the pointer's own position is shared by all panels. */
export function bindScrubbing(canvas: HTMLCanvasElement, stage: Stage, axis: () => TimeAxis | null): void {
  const { store } = stage;
  const over = (event: PointerEvent): { place: number; inside: boolean } | null => {
    const shown = axis();
    if (!shown) return null;
    const pixel = event.clientX - canvas.getBoundingClientRect().left;
    return { place: placeAt(shown, pixel), inside: pixel >= shown.left && pixel <= shown.right };
  };
  let dragged = false;
  canvas.addEventListener("pointerdown", (event) => {
    const found = over(event);
    if (event.button !== 0 || !found?.inside) return;
    dragged = true;
    canvas.setPointerCapture(event.pointerId);
    store.update({ playing: false });
    store.go(found.place);
  });
  canvas.addEventListener("pointermove", (event) => {
    const found = over(event);
    if (!found) return;
    const hovered = Math.min(found.place, store.replay.length - 1);
    store.update({ hoveredT: found.inside || dragged ? hovered : null });
    if (dragged && found.place !== store.state.t) store.go(found.place);
  });
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"] as const) {
    canvas.addEventListener(end, () => {
      dragged = false;
    });
  }
  canvas.addEventListener("pointerleave", () => store.update({ hoveredT: null }));
}
