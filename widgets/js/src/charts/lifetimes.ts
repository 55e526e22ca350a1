/**
 * Lifetimes: one row for the equivalent storages of identical layers, with up to four thin bars or one bar for all of
 * them.
 */

import type { Axis } from "../model/axis.ts";
import { HEADING, ROW } from "../model/timeline_rows.ts";
import { CATEGORIES, type LifetimeRow } from "../model/document.ts";
import type { MemoryLevels, Segment } from "../model/memory.ts";
import { mixed } from "../canvas.ts";
import { FAINT, type LifetimeBar, type LifetimeBars, type Picture } from "./timeline_picture.ts";

const THIN = 2.4;
const PITCH = 3.1;
const THICK = 7;
/** Minimum width of a bar, so that a storage of one task among many thousands remains visible. */
const LEAST_BAR = 1.5;

/** Return the bars of a row: one per storage, or one from the first allocation to the last free. */
export function barsOf(levels: MemoryLevels, row: LifetimeRow): LifetimeBars {
  const bars = row.storages.map((storage) => barOf(levels, storage));
  if (row.count === bars.length) return { row, bars };
  const [first, last] = [bars[0], bars[bars.length - 1]];
  const { from } = first.segments[0];
  const { category } = first.segments[first.segments.length - 1]; // the last one: a .grad starts as an input buffer
  const { to } = last.segments[last.segments.length - 1];
  return { row, bars: [{ ...first, stays: last.stays, segments: [{ category, from, to: Math.max(from, to) }] }] };
}

function barOf(levels: MemoryLevels, storage: number): LifetimeBar {
  const [isBorn, stays] = [levels.born(storage) !== null, levels.died(storage) === null];
  return { storage, segments: levels.segments(storage), isBorn, stays };
}

/** Return the top of a row, in pixels from the timeline's top. */
export function rowTop({ bands }: Pick<Picture, "bands">, row: number): number {
  return bands.lifetimes.top + HEADING + row * ROW;
}

export function drawLifetimes(context: CanvasRenderingContext2D, picture: Picture, isSolid: boolean): void {
  const { axis, bands, colours, lifetimes } = picture;
  lifetimes.slice(0, bands.lifetimes.rows).forEach(({ bars }, number) => {
    const top = rowTop(picture, number);
    const height = bars.length > 1 ? THIN : THICK;
    bars.forEach((bar, index) => {
      const at = bars.length > 1 ? top + 0.8 + index * PITCH : top + (ROW - THICK) / 2;
      for (const segment of bar.segments) {
        const colour = colours[CATEGORIES[segment.category].key];
        context.fillStyle = isSolid ? colour : mixed(colour, colours.panel, FAINT);
        const [from, to] = ends(axis, segment);
        context.fillRect(from, at, to - from, height);
      }
      context.fillStyle = colours.ink2;
      const end = ends(axis, bar.segments[bar.segments.length - 1])[1];
      if (!bar.stays) context.fillRect(end - 0.5, at - 0.5, 1, height + 1);
      if (!bar.isBorn) arrow(context, axis.x(bar.segments[0].from), at, height);
    });
  });
}

function ends(axis: Axis, { from, to }: Segment): [number, number] {
  const start = axis.x(from);
  return [start, Math.max(start + LEAST_BAR, axis.x(to))];
}

/** Draw an arrow to the left: the storage is older than the recording. */
function arrow(context: CanvasRenderingContext2D, left: number, top: number, height: number): void {
  context.beginPath();
  context.moveTo(left, top - 0.5);
  context.lineTo(left, top + height + 0.5);
  context.lineTo(left + 3, top + height / 2);
  context.fill();
}
