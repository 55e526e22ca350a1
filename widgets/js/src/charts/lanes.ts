/** What each device does: a bar a task, below them the length of its queue; idle stretches are hatched. */

import { BAR } from "../model/bands.ts";
import type { Lane } from "../model/lanes.ts";
import type { Axis } from "../model/axis.ts";
import { FAINT, type Picture } from "./picture.ts";
import { mixed } from "./surface.ts";

/** Bars that are wider have a gap between them. */
const WIDE = 3;
const LEAST_BAR = 0.7;
const HATCH = 5;
const TOP = 2;
/** Between the bars and the queue, and below it. */
const SPACE = 4;
const BELOW = 3;
const SOFT = 0.4;

export function drawLanes(context: CanvasRenderingContext2D, picture: Picture, isSolid: boolean): void {
  const { axis, bands, colours, lanes } = picture;
  const longest = Math.max(2, ...lanes.map((lane) => lane.longest));
  lanes.forEach((lane, number) => {
    const { top, height } = bands.lanes[number];
    hatch(context, picture, lane, top + TOP);
    context.fillStyle = isSolid ? colours.ink3 : mixed(colours.ink3, colours.panel, FAINT);
    context.fill(bars(axis, lane, top + TOP));
    if (bands.hasQueues) drawQueue(context, picture, lane, { top: top + TOP + BAR + SPACE, bottom: top + height - BELOW, longest });
  });
}

/** Tasks that can't be told apart are one bar. */
function bars(axis: Axis, { places }: Lane, top: number): Path2D {
  const path = new Path2D();
  let [from, to] = [NaN, NaN];
  const flush = () => to > from && path.rect(from, top, to - from, BAR);
  for (const place of places) {
    const start = axis.x(place);
    const end = axis.end(place);
    if (end < axis.left - 1 || start > axis.right + 1) continue;
    const drawn = Math.max(start + LEAST_BAR, end - (end - start > WIDE ? 0.8 : 0));
    if (start - to < 0.3) to = Math.max(to, drawn);
    else {
      flush();
      [from, to] = [start, drawn];
    }
  }
  flush();
  return path;
}

function drawQueue(
  context: CanvasRenderingContext2D,
  { axis, colours }: Picture,
  { queue }: Lane,
  { top, bottom, longest }: { top: number; bottom: number; longest: number },
): void {
  const line = new Path2D();
  const left = axis.backward.left;
  line.moveTo(left, bottom);
  // Of positions in one pixel the longest queue is drawn.
  let [pixel, most] = [left, 0];
  const flush = (until: number) => {
    const y = bottom - ((bottom - top) * most) / longest;
    line.lineTo(pixel, y);
    line.lineTo(until, y);
  };
  for (let position = 0; position < axis.places; position++) {
    const x = axis.x(position);
    if (x - pixel > 0.5) {
      flush(x);
      [pixel, most] = [x, 0];
    }
    most = Math.max(most, queue[position]);
  }
  flush(axis.backward.right);
  line.lineTo(axis.backward.right, bottom);
  context.globalAlpha = SOFT;
  context.fillStyle = colours.buffer;
  context.fill(line);
  context.globalAlpha = 1;
  context.strokeStyle = colours.buffer;
  context.lineWidth = 1;
  context.stroke(line);
}

function hatch(context: CanvasRenderingContext2D, { axis, colours, times }: Picture, lane: Lane, top: number): void {
  if (axis.kind !== "clock" || !times) return;
  const { left, right } = axis.backward;
  const x = (ns: number) => left + ((right - left) * ns) / times.total;
  for (const { from, to } of lane.idle) {
    const [start, end] = [Math.max(axis.left, x(from) + 1), Math.min(axis.right, x(to) - 1)];
    if (end <= start) continue;
    context.save();
    context.beginPath();
    context.rect(start, top, end - start, BAR);
    context.clip();
    context.strokeStyle = colours.line2;
    context.lineWidth = 1;
    context.beginPath();
    for (let at = start - BAR - ((start - BAR) % HATCH); at < end; at += HATCH) {
      context.moveTo(at, top + BAR);
      context.lineTo(at + BAR, top);
    }
    context.stroke();
    context.restore();
  }
}
