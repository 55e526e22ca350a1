/**
 * The ruler below all rows, and the moving parts over them: the playhead and its number, the pointer's line, and
 * breakpoints.
 */

import type { Axis } from "../model/axis.ts";
import { BAR, PHASES } from "../model/timeline_rows.ts";
import { NEVER } from "../model/replay.ts";
import type { Store } from "../store.ts";
import { count, nanoseconds, nth } from "../format.ts";
import { smallType } from "../canvas.ts";
import type { Picture } from "./timeline_picture.ts";

const FLAG = 14;
/** Minimum space between a tick's text and the playhead's, pixels. */
const SPACE = 6;
/** Distance below which breakpoints are drawn as one connected mark. */
const CLOSE = 9;
/** Vertical position of breakpoints and search matches, between phases and lanes. */
const MARKS = PHASES - 0.5;

/** Draw the playhead over the running task, through all rows. */
export function drawPlayhead(context: CanvasRenderingContext2D, { axis, bands, colours }: Picture, t: number): void {
  const from = axis.x(t);
  const to = Math.max(from + 2, axis.end(t));
  if (from >= axis.left - 1 && from <= axis.right + 1) {
    const wide = Math.min(to, axis.right) - from;
    context.fillStyle = colours.accent;
    context.globalAlpha = 0.16;
    context.fillRect(from, PHASES, wide, bands.ruler - PHASES);
    context.globalAlpha = 1;
    context.fillRect(from - 0.75, PHASES, 1.5, bands.ruler - PHASES);
  }
}

/** Draw task numbers or times below all rows, and the playhead's own number in a flag. */
export function drawRuler(context: CanvasRenderingContext2D, { axis, bands, colours, forward }: Picture, t: number): void {
  const middle = bands.ruler + 8.5;
  const ns = axis.ns(t);
  const number = t >= axis.places ? "end" : nth(t + 1);
  const text = ns === null ? number : `${number} · ${nanoseconds(ns)}`;
  context.textAlign = "center";
  context.font = smallType(600);
  const width = context.measureText(text).width + 12;
  const left = Math.max(axis.left, Math.min(axis.right - width, axis.x(t) - width / 2));
  context.font = smallType(400);
  context.fillStyle = colours.ink3;
  for (const { x, half, text: tick } of ticksOf(axis, context)) {
    if (x + half + SPACE < left || x - half - SPACE > left + width) context.fillText(tick, x, middle);
  }
  if (forward && axis.forward) {
    const said = count(forward, "allocation");
    const from = Math.max(axis.left, axis.forward.left);
    const fits = from + context.measureText(said).width + SPACE < Math.min(axis.forward.right, left);
    context.textAlign = "left";
    if (fits) context.fillText(said, from + 2, middle);
    context.textAlign = "center";
  }
  context.fillStyle = colours.accent;
  context.beginPath();
  context.roundRect(left, bands.ruler + 1, width, FLAG, 3);
  context.fill();
  context.font = smallType(600);
  context.fillStyle = colours["accent-ink"];
  context.fillText(text, left + width / 2, middle);
}

const placed = new WeakMap<Axis, { x: number; half: number; text: string }[]>();

/**
 * Return the ticks of an axis that fit, with half of each one's width. They are measured once and drawn in each frame.
 */
function ticksOf(axis: Axis, context: CanvasRenderingContext2D): { x: number; half: number; text: string }[] {
  let found = placed.get(axis);
  if (!found) {
    found = [];
    for (const { x, text } of axis.ticks()) {
      const half = context.measureText(text).width / 2;
      const last = found.at(-1);
      const at = Math.max(axis.left + half, Math.min(axis.right - half, x));
      if (!last || at - half >= last.x + last.half + SPACE) found.push({ x: at, half, text });
    }
    placed.set(axis, found);
  }
  return found;
}

/** Draw the bars of the running or current task. */
export function drawRunning(context: CanvasRenderingContext2D, picture: Picture, store: Store): void {
  const { axis, bands, colours, lanes } = picture;
  const { t } = store.state;
  if (t >= axis.places) return;
  const device = store.document.tasks.device[store.running];
  const lane = lanes.findIndex((each) => each.device === device);
  const from = Math.max(axis.left, axis.x(t));
  const to = Math.min(axis.right, Math.max(axis.x(t) + 1.5, axis.end(t)));
  if (lane < 0 || to <= from) return;
  context.fillStyle = colours.accent;
  context.fillRect(from, bands.lanes[lane].top + 2, to - from, BAR);
}

/** Draw the line under the pointer. */
export function drawCursor(context: CanvasRenderingContext2D, { axis, bands, colours }: Picture, time: number): void {
  const x = Math.round(axis.x(time)) + 0.5;
  if (x < axis.left || x > axis.right) return;
  context.setLineDash([2, 3]);
  context.strokeStyle = colours.ink2;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x, PHASES);
  context.lineTo(x, bands.ruler);
  context.stroke();
  context.setLineDash([]);
}

/** Draw marks for search matches and breakpoints. */
export function drawMarks(context: CanvasRenderingContext2D, picture: Picture, { state, replay }: Store): void {
  const { axis, colours } = picture;
  if (state.matches) {
    context.fillStyle = colours.saved;
    let last = -Infinity;
    for (let place = 0; place < axis.places; place++) {
      if (!state.matches[replay.schedule.order[place]]) continue;
      const x = axis.x(place);
      if (x - last < 1 || x < axis.left || x > axis.right) continue;
      context.fillRect((last = x), MARKS - 2.5, 2, 4);
    }
  }
  const pixels = new Map<number, boolean>();
  for (const [task, enabled] of state.marks) {
    if (replay.place[task] === NEVER) continue;
    const at = Math.round(2 * axis.x(replay.place[task])) / 2;
    if (at >= axis.left && at <= axis.right) pixels.set(at, enabled || pixels.get(at) === true);
  }
  drawBreakpoints(context, picture, pixels);
}

/** Draw breakpoints. Of those close together only the first is drawn, with a line as far as they extend. */
function drawBreakpoints(context: CanvasRenderingContext2D, { colours }: Picture, pixels: Map<number, boolean>): void {
  const runs: { from: number; to: number; enabled: boolean }[] = [];
  for (const [at, enabled] of [...pixels].sort(([one], [other]) => one - other)) {
    const last = runs.at(-1);
    if (last && at - last.to < CLOSE && enabled === last.enabled) last.to = at;
    else runs.push({ from: at, to: at, enabled });
  }
  for (const { from, to, enabled } of runs) {
    context.fillStyle = colours.panel;
    octagon(context, from, 5);
    context.fillStyle = colours.ink;
    if (to > from) context.fillRect(from, MARKS - 1.5, to - from, 3);
    octagon(context, from, 4);
    context.fillStyle = colours.panel;
    if (!enabled) octagon(context, from, 2.4);
  }
}

function octagon(context: CanvasRenderingContext2D, x: number, radius: number): void {
  context.beginPath();
  for (let corner = 0; corner < 8; corner++) {
    const angle = Math.PI / 8 + (corner * Math.PI) / 4;
    context.lineTo(x + radius * Math.cos(angle), MARKS + radius * Math.sin(angle));
  }
  context.fill();
}
