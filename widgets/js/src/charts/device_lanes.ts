/**
 * Lanes of the devices: one bar per task, the queue length below them and, with several devices, the memory. Idle
 * stretches are hatched.
 */

import { BAR } from "../model/timeline_rows.ts";
import type { Lane } from "../model/device_lanes.ts";
import type { Axis } from "../model/axis.ts";
import { hatch, mixed } from "../canvas.ts";
import { FAINT, type Picture } from "./timeline_picture.ts";

/** Width above which bars have a gap between them. */
const WIDE = 3;
const LEAST_BAR = 0.7;
const HATCH = 5;
const TOP = 2;
/** Space between the bars and the queue, and below the queue. */
const SPACE = 4;
const BELOW = 3;
const SOFT = 0.4;

export function drawLanes(context: CanvasRenderingContext2D, picture: Picture, isSolid: boolean): void {
  const { axis, bands, colours, lanes } = picture;
  const longest = Math.max(2, ...lanes.map((lane) => lane.longest));
  lanes.forEach((lane, number) => {
    const { top, height } = bands.lanes[number];
    hatchIdle(context, picture, lane, top + TOP);
    context.fillStyle = isSolid ? colours.ink3 : mixed(colours.ink3, colours.panel, FAINT);
    context.fill(bars(axis, lane, top + TOP));
    if (!bands.hasQueues) return;
    const within = { top: top + TOP + BAR + SPACE, bottom: top + height - BELOW };
    const queue = steps(axis, lane.queue, longest, within);
    context.globalAlpha = SOFT;
    context.fillStyle = context.strokeStyle = colours.buffer;
    context.fill(queue);
    context.globalAlpha = 1;
    context.lineWidth = 1;
    context.stroke(queue);
    context.strokeStyle = colours.ink2;
    if (lane.peak) context.stroke(steps(axis, lane.levels, lane.peak, within));
  });
}

/** Return the path of the bars; tasks too narrow to distinguish share one bar. */
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

/** Return the step curve of values by place, scaled to `most`. Places in the same pixel show their maximum. */
function steps(axis: Axis, values: ArrayLike<number>, most: number, { top, bottom }: { top: number; bottom: number }): Path2D {
  const line = new Path2D();
  const { left, right } = axis.backward;
  line.moveTo(left, bottom);
  let [pixel, highest] = [left, 0];
  const flush = (until: number) => {
    const y = bottom - ((bottom - top) * highest) / most;
    line.lineTo(pixel, y);
    line.lineTo(until, y);
  };
  for (let place = 0; place < axis.places; place++) {
    const x = axis.x(place);
    if (x - pixel > 0.5) {
      flush(x);
      [pixel, highest] = [x, 0];
    }
    highest = Math.max(highest, values[place] ?? 0);
  }
  flush(right);
  line.lineTo(right, bottom);
  return line;
}

function hatchIdle(context: CanvasRenderingContext2D, { axis, colours, times }: Picture, lane: Lane, top: number): void {
  if (axis.kind !== "clock" || !times) return;
  const { left, right } = axis.backward;
  const x = (ns: number) => left + ((right - left) * ns) / times.total;
  for (const { from, to } of lane.idle) {
    const [start, end] = [Math.max(axis.left, x(from) + 1), Math.min(axis.right, x(to) - 1)];
    if (end <= start) continue;
    hatch(context, [start, top, end - start, BAR], colours.line2, HATCH, (start - BAR) % HATCH);
  }
}
