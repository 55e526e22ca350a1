/** The memory chart: the stack by category, the levels of other policies, the predictions of a plan, and the scale. */

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
/** Width of the band that shows a prediction; it must be visible on both sides of the measured curve. */
const BAND = 5;
/** Opacity of the area below the level without the plan, where no stack covers it. */
const VEIL = 0.14;
/** Height of the chart relative to the highest level. */
const HEADROOM = 1.05;
const MOST_TICKS = 4.2;
/** Minimum distance between two ticks, pixels. */
const LEAST_TICK = 18;
/** Distance from the heading's top up to which a label would be hidden by the button beside it. */
const BUTTON = 23;
/** Minimum difference to the shown level, relative to its peak, for which another policy's level is drawn. */
const DIFFERENT = 0.01;

/** Content of the memory chart. */
export interface Stack {
  shown: MemoryLevels;
  /** Levels that include the forward; null if no schedule recorded it. */
  forward: MemoryLevels | null;
  /** Levels of other policies, with their line patterns and task times. */
  others: { levels: MemoryLevels; dash: readonly number[]; times: () => Times | null }[];
  /** Predictions of a recompute plan. */
  curves: CurveLevels[];
  /** True if the scale ignores the other policies. */
  ownScale: boolean;
}

/** Return whether another policy's level differs enough for its own line during any task. */
function differs({ taskLevels, peak }: MemoryLevels, other: MemoryLevels): boolean {
  return taskLevels.some((level, place) => Math.abs(other.taskLevels[place] - level) >= DIFFERENT * peak.bytes);
}

/** Return the y coordinate of a level, in CSS pixels from the timeline's top. */
export function heightOf({ chart }: Bands, most: number, level: number): number {
  return chart.bottom - ((chart.bottom - chart.top) * level) / (Math.max(most, 1) * HEADROOM);
}

export function stackPaths(axis: Axis, bands: Bands, stack: Stack): StackPaths {
  const { shown, forward, curves } = stack;
  const others = stack.others.filter(({ levels }) => differs(shown, levels));
  const highest = [shown.peak.bytes, ...curves.map(({ peak }) => peak), forward ? forwardPeak(forward) : 0];
  const own = Math.max(...highest);
  const all = Math.max(own, ...others.map(({ levels }) => levels.peak.bytes));
  const most = stack.ownScale ? own : all;
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
    // Each area reaches down to the axis, and the lower categories are painted over it.
    for (const category of [...FROM_BELOW].reverse()) {
      if (!steps.levels[category].some((level) => level > 0)) continue;
      areas.push([CATEGORIES[category].key, plot.area(steps, edges[category])]);
    }
    outlines.push(plot.line(steps, steps.total));
  }
  return {
    most,
    hasScales: all > own,
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

/** Return the cumulative heights of the categories' levels. */
function stacked(steps: Steps): Float64Array[] {
  const edges: Float64Array[] = [];
  let below: Float64Array | null = null;
  for (const category of FROM_BELOW) {
    const edge: Float64Array = below ? steps.levels[category].map((level, at) => level + below![at]) : steps.levels[category];
    edges[category] = below = edge;
  }
  return edges;
}

/** Step curves in the plot, each phase separately. */
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
      // Times must not decrease along a curve, even if devices overlap or another order ends later.
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
  context.save();
  context.beginPath();
  context.rect(0, bands.chart.top, picture.width, bands.chart.bottom - bands.chart.top); // they may be higher than the scale
  context.clip();
  for (const { dash, path } of paths.others) {
    context.setLineDash([...dash]);
    context.stroke(path);
  }
  context.restore();
  context.strokeStyle = colours.ink;
  for (const path of paths.outlines) context.stroke(path);
  context.fillStyle = colours.line2;
  context.fillRect(picture.axis.left, bands.chart.bottom, picture.axis.right - picture.axis.left, 1);
}

/** Draw a prediction: the level without the plan as a thin line over a shaded area, the level with it as a band. */
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

/** Draw the scale in binary units, in the right gutter. */
export function drawScale(context: CanvasRenderingContext2D, picture: Picture, paths: StackPaths): void {
  context.font = smallType(400);
  context.textAlign = "left";
  context.fillStyle = picture.colours.ink3;
  for (const level of ticksOf(picture, paths)) {
    const y = heightOf(picture.bands, paths.most, level);
    if (paths.hasScales && y < picture.bands.memory.top + BUTTON) continue; // covered by the button of the scale
    context.fillText(size(level).replace(".0 ", " "), picture.axis.right + 8, y + 0.5);
  }
}

/** Draw the ring at the peak. */
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
