/** Memory from the forward's first byte: the stack by category, other policies' levels, a plan's curves, the scale. */

import type { Axis } from "../model/axis.ts";
import type { Bands } from "../model/timeline_rows.ts";
import type { Times } from "../model/task_times.ts";
import { type CurveLevels } from "../model/recompute_curves.ts";
import { CATEGORIES, FROM_BELOW } from "../model/document.ts";
import type { MemoryLevels, Steps } from "../model/memory.ts";
import { size } from "../format.ts";
import { byteTicks } from "../ticks.ts";
import type { Colours } from "../view_types.ts";
import { mixed, smallType } from "../canvas.ts";
import { FAINT, type Picture, type StackPaths } from "./timeline_picture.ts";

const LINE = 1.2;
/** What is planned is a soft band, wide enough to be seen on both sides of what was measured. */
const BAND = 5;
/** How much ink is in the area below the level without the plan, as far as no stack covers it. */
const VEIL = 0.14;
/** Free space above the highest level, as a share of it. */
const HEADROOM = 1.05;
const MOST_TICKS = 4.2;
/** A tick has so many pixels at least. */
const LEAST_TICK = 18;
/** So far down from the heading's top a label would be below the button beside it. */
const BUTTON = 23;
/** Other policies' levels are drawn if their peaks differ by so much. */
const DIFFERENT = 0.01;

/** What is drawn. */
export interface Stack {
  shown: MemoryLevels;
  /** That which has the forward; null where nobody recorded it. */
  forward: MemoryLevels | null;
  /** Other policies, with the pattern of each one's line, and when their tasks run. */
  others: { levels: MemoryLevels; dash: readonly number[]; times: () => Times | null }[];
  /** What a recompute plan predicts. */
  curves: CurveLevels[];
  /** Whether the scale is that of the shown policy alone. */
  ownScale: boolean;
}

/** The same as paths. */
/** Whether another policy's level is worth a line of its own. */
export function differs(shown: MemoryLevels, other: MemoryLevels): boolean {
  return Math.abs(other.peak.bytes - shown.peak.bytes) >= DIFFERENT * shown.peak.bytes;
}

/** A level's height in the plot, CSS pixels from the timeline's top. */
export function heightOf({ chart }: Bands, most: number, level: number): number {
  return chart.bottom - ((chart.bottom - chart.top) * level) / (Math.max(most, 1) * HEADROOM);
}

export function stackPaths(axis: Axis, bands: Bands, stack: Stack): StackPaths {
  const { shown, forward, curves } = stack;
  const others = stack.others.filter(({ levels }) => differs(shown, levels));
  const highest = [shown.peak.bytes, ...curves.map(({ peak }) => peak), forward ? forwardPeak(forward) : 0];
  const most = Math.max(...highest, ...(stack.ownScale ? [] : others.map(({ levels }) => levels.peak.bytes)));
  const y = (level: number) => heightOf(bands, most, level);
  const ratio = devicePixelRatio;
  const columns = (axis: Axis) => (time: number) => {
    const x = axis.x(time);
    return x < axis.left ? -1 : Math.round(Math.min(x, axis.right + 1) * ratio);
  };
  const columnOf = columns(axis);
  const plot = new Plot(axis, y);
  const parts = [shown.steps(columnOf)];
  if (axis.forward && forward) parts.unshift(forward.forwardSteps(columnOf));
  if (axis.after && shown.isStep) parts.push(shown.afterSteps(columnOf));
  const areas: StackPaths["areas"] = [];
  const outlines: Path2D[] = [];
  for (const steps of parts) {
    const edges = stacked(steps);
    // Each area reaches down to the axis, and the ones below cover it.
    for (const category of [...FROM_BELOW].reverse()) {
      if (!steps.levels[category].some((level) => level > 0)) continue;
      areas.push([CATEGORIES[category].key, plot.area(steps, edges[category])]);
    }
    outlines.push(plot.line(steps, steps.total));
  }
  return {
    most,
    areas,
    outlines,
    others: others.map(({ levels, dash, times }) => {
      const own = axis.timed(axis.kind === "clock" ? times() : null);
      const steps = levels.steps(columns(own));
      return { dash, path: new Plot(own, y).line(steps, steps.total) };
    }),
    curves: curves.map((levels) => {
      const steps = levels.steps(columnOf);
      return { name: levels.curve.name, path: plot.line(steps, steps.total), area: plot.area(steps, steps.total) };
    }),
  };
}

function forwardPeak(levels: MemoryLevels): number {
  return levels.levels.subarray(0, levels.forwardEvents + 1).reduce((most, level) => Math.max(most, level), 0);
}

/** From levels by category to the heights of their upper edges. */
function stacked(steps: Steps): Float64Array[] {
  const edges: Float64Array[] = [];
  let below: Float64Array | null = null;
  for (const category of FROM_BELOW) {
    const edge: Float64Array = below ? steps.levels[category].map((level, at) => level + below![at]) : steps.levels[category];
    edges[category] = below = edge;
  }
  return edges;
}

/** Levels as steps in the plot, each phase by itself. */
class Plot {
  constructor(
    private readonly axis: Axis,
    private readonly y: (level: number) => number,
  ) {}

  private ends({ times }: Steps): [number, number] {
    const { forward, backward, after, places } = this.axis;
    const phase = times[0] < 0 ? forward! : after && times[0] > places ? after : backward;
    return [phase.left, phase.right];
  }

  line(steps: Steps, levels: Float64Array): Path2D {
    const path = new Path2D();
    const [left, right] = this.ends(steps);
    let [x, y] = [left, this.y(levels[0])];
    path.moveTo(x, y);
    for (let at = 0; at < steps.count; at++) {
      // A level has one moment after the other, also where devices overlap; another order's may be later than all of these.
      x = Math.min(right, Math.max(x, this.axis.x(steps.times[at])));
      path.lineTo(x, y);
      y = this.y(levels[at]);
      path.lineTo(x, y);
    }
    path.lineTo(right, y);
    return path;
  }

  area(steps: Steps, levels: Float64Array): Path2D {
    const path = this.line(steps, levels);
    const [left, right] = this.ends(steps);
    path.lineTo(right, this.y(0));
    path.lineTo(left, this.y(0));
    path.closePath();
    return path;
  }
}

export function drawStack(context: CanvasRenderingContext2D, picture: Picture, paths: StackPaths, isSolid: boolean): void {
  const { colours, bands } = picture;
  drawGrid(context, picture, paths);
  for (const { name, area } of paths.curves) {
    if (name !== "plain") continue;
    context.fillStyle = mixed(colours.ink3, colours.panel, VEIL);
    context.fill(area);
  }
  for (const [colour, path] of paths.areas) {
    context.fillStyle = isSolid ? colours[colour] : mixed(colours[colour], colours.panel, FAINT);
    context.fill(path);
  }
  context.lineJoin = "round";
  for (const { name, path } of paths.curves) drawCurve(context, colours, name, path);
  context.lineWidth = LINE;
  context.strokeStyle = colours.ink2;
  for (const { dash, path } of paths.others) {
    context.setLineDash([...dash]);
    context.stroke(path);
  }
  context.setLineDash([]);
  context.strokeStyle = colours.ink;
  for (const path of paths.outlines) context.stroke(path);
  context.fillStyle = colours.line2;
  context.fillRect(picture.axis.left, bands.chart.bottom, picture.axis.right - picture.axis.left, 1);
}

/** The level without the plan is a thin line over a veil, that which is planned a band. */
function drawCurve(
  context: CanvasRenderingContext2D,
  colours: Colours,
  name: CurveLevels["curve"]["name"],
  path: Path2D,
): void {
  context.setLineDash([]);
  if (name === "planned") {
    context.globalAlpha = 0.3;
    context.strokeStyle = colours.ink2;
    context.lineWidth = BAND;
    context.stroke(path);
    context.globalAlpha = 1;
    return;
  }
  context.strokeStyle = colours.ink3;
  context.lineWidth = 1;
  context.stroke(path);
}

function ticksOf({ bands: { chart } }: Picture, { most }: StackPaths): number[] {
  const count = Math.min(MOST_TICKS, Math.max(1.9, (chart.bottom - chart.top) / LEAST_TICK));
  return byteTicks(Math.max(most, 1) * HEADROOM, count).slice(1);
}

function drawGrid(context: CanvasRenderingContext2D, picture: Picture, paths: StackPaths): void {
  const { axis, colours, bands } = picture;
  context.fillStyle = colours.line;
  for (const level of ticksOf(picture, paths)) {
    context.fillRect(axis.left, Math.round(heightOf(bands, paths.most, level)), axis.right - axis.left, 1);
  }
}

/** The sizes in binary units, in the right gutter. */
export function drawScale(context: CanvasRenderingContext2D, picture: Picture, paths: StackPaths): void {
  context.font = smallType(400);
  context.textAlign = "left";
  context.fillStyle = picture.colours.ink3;
  for (const level of ticksOf(picture, paths)) {
    const y = heightOf(picture.bands, paths.most, level);
    if (paths.others.length && y < picture.bands.memory.top + BUTTON) continue; // the button of the scale is there
    context.fillText(size(level).replace(".0 ", " "), picture.axis.right + 8, y + 0.5);
  }
}

/** The ring at the peak. */
export function drawRing(context: CanvasRenderingContext2D, { axis, bands, colours }: Picture, { most }: StackPaths, peak: { time: number; bytes: number }): void {
  const x = axis.x(peak.time);
  if (x < axis.left - 1 || x > axis.right + 1) return;
  context.fillStyle = colours.panel;
  context.strokeStyle = colours.ink;
  context.lineWidth = 1.6;
  context.beginPath();
  context.arc(x, heightOf(bands, most, peak.bytes), 3.4, 0, 2 * Math.PI);
  context.fill();
  context.stroke();
}
