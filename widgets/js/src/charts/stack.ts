/** The picture of memory that does not move: the stack by category, every policy's outline, scale and grid. */

import { el } from "../dom.ts";
import { CATEGORIES } from "../model/document.ts";
import type { CurveLevels } from "../model/curves.ts";
import type { MemoryLevels, Steps } from "../model/memory.ts";
import { size } from "../text.ts";
import type { Colours } from "../view.ts";
import type { TimeAxis } from "./axis.ts";
import { fit, mixed, smallType } from "./surface.ts";

/** Around the plot: room for the peak's sentence above, for the task numbers below. */
export const ABOVE = 20;
export const BELOW = 22;

/** How much of its colour is left of what has not run yet. */
export const FAINT = 0.36;

const LINE = 1.2;
/** What is planned is a soft band, wide enough to be seen on both sides of what was measured. */
const BAND = 5;
/** How much ink is in the area below the level without the plan, as far as no stack covers it. */
export const VEIL = 0.14;
/** Free space above the highest level, as a share of it. */
const HEADROOM = 1.02;
const MOST_TICKS = 4.2;

export interface StackPicture {
  axis: TimeAxis;
  width: number;
  height: number;
  shown: MemoryLevels;
  /** The other policies, with the pattern of each one's line. */
  others: { levels: MemoryLevels; dash: readonly number[] }[];
  /** What a plan for mirroring predicts. */
  curves: CurveLevels[];
  /** The level at the top of the scale. */
  most: number;
  colours: Colours;
}

/** The drawn chart: what has run looks like `solid`, what is to come like the chart itself in `host`. */
export interface DrawnStack {
  solid: HTMLCanvasElement;
  dispose(): void;
}

/** A level's height in the plot, CSS pixels from the panel's top. */
export function heightOf(picture: StackPicture, level: number): number {
  const bottom = picture.height - BELOW;
  return bottom - ((bottom - ABOVE) * level) / top(picture);
}

function top(picture: StackPicture): number {
  return Math.max(picture.most, 1) * HEADROOM;
}

/** Levels in steps of a power of two, 0 included, at most five of them. */
export function byteTicks(most: number): number[] {
  let step = 2 ** Math.floor(Math.log2(most / 3));
  while (most / step > MOST_TICKS) step *= 2;
  const found = [];
  for (let level = 0; level <= most; level += step) found.push(level);
  return found;
}

/** Draws the chart into `host`, at once. */
export function drawStack(host: HTMLElement, picture: StackPicture): DrawnStack {
  const { axis, shown, colours } = picture;
  const columns = Math.max(1, Math.round((axis.right - axis.left) * devicePixelRatio));
  const steps = shown.steps(columns);
  const areas: [string, Path2D][] = [];
  stacked(steps).forEach((edge, category) => {
    // Each area reaches down to the axis, and the ones below cover it.
    if (shown.used[category]) areas.unshift([colours[CATEGORIES[category].key], areaPath(picture, steps, edge)]);
  });
  const lines: [string, readonly number[], Path2D][] = picture.others.map(({ levels, dash }) => {
    const other = levels.steps(columns);
    return [colours.ink2, dash, linePath(picture, other, total(other))];
  });
  lines.push([colours.ink, [], linePath(picture, steps, total(steps))]);
  const curves = picture.curves.map((levels) => {
    const { times, levels: heights } = levels.steps(columns);
    const moments = { count: times.length, times };
    const path = linePath(picture, moments, heights);
    return { name: levels.curve.name, path, area: areaPath(picture, moments, heights) };
  });

  const paint = (canvas: HTMLCanvasElement, isSolid: boolean) => {
    const context = fit(canvas, picture.width, picture.height);
    if (isSolid) {
      context.fillStyle = colours.panel; // a ground that hides what it is drawn over
      context.fillRect(0, 0, picture.width, picture.height);
    }
    drawGrid(context, picture);
    context.save();
    context.beginPath();
    context.rect(axis.left, ABOVE, axis.right - axis.left, picture.height - BELOW - ABOVE + LINE);
    context.clip();
    for (const { area } of curves.filter(({ name }) => name === "plain")) {
      context.fillStyle = mixed(colours.ink3, colours.panel, VEIL);
      context.fill(area);
    }
    for (const [colour, path] of areas) {
      context.fillStyle = isSolid ? colour : mixed(colour, colours.panel, FAINT);
      context.fill(path);
    }
    context.lineJoin = "round";
    for (const { name, path } of curves) drawCurve(context, colours, name, path);
    context.lineWidth = LINE;
    for (const [colour, dash, path] of lines) {
      context.strokeStyle = colour;
      context.setLineDash(dash);
      context.stroke(path);
    }
    context.restore();
    drawScale(context, picture);
    return canvas;
  };
  const faint = host.appendChild(paint(el("canvas"), false));
  return { solid: paint(el("canvas"), true), dispose: () => faint.remove() };
}

/** From levels by category to the heights of their upper edges. */
function stacked(steps: Steps): Float64Array[] {
  const edges: Float64Array[] = [];
  for (const levels of steps.levels) {
    const below = edges.at(-1);
    edges.push(levels.map((level, at) => level + (below ? below[at] : 0)));
  }
  return edges;
}

function total(steps: Steps): Float64Array {
  return stacked(steps).at(-1)!;
}

/** The level without the plan is a thin line over a veil, that which is planned a band. */
export function drawCurve(
  context: CanvasRenderingContext2D,
  colours: Colours,
  name: CurveLevels["curve"]["name"],
  path: Path2D,
): void {
  context.setLineDash([]);
  if (name === "mirrored") {
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

function linePath(picture: StackPicture, steps: { count: number; times: ArrayLike<number> }, levels: ArrayLike<number>): Path2D {
  const path = new Path2D();
  const { left, right, places } = picture.axis;
  const across = (right - left) / Math.max(places, 1);
  let y = heightOf(picture, levels[0]);
  path.moveTo(left, y);
  for (let at = 0; at < steps.count; at++) {
    const x = left + steps.times[at] * across;
    path.lineTo(x, y);
    y = heightOf(picture, levels[at]);
    path.lineTo(x, y);
  }
  path.lineTo(right, y);
  return path;
}

function areaPath(
  picture: StackPicture,
  steps: { count: number; times: ArrayLike<number> },
  levels: ArrayLike<number>,
): Path2D {
  const path = linePath(picture, steps, levels);
  const { left, right } = picture.axis;
  path.lineTo(right, heightOf(picture, 0));
  path.lineTo(left, heightOf(picture, 0));
  path.closePath();
  return path;
}

function drawGrid(context: CanvasRenderingContext2D, picture: StackPicture): void {
  const { left, right } = picture.axis;
  context.beginPath();
  for (const level of byteTicks(top(picture))) {
    const y = Math.round(heightOf(picture, level)) + 0.5;
    context.moveTo(left, y);
    context.lineTo(right, y);
  }
  context.lineWidth = 1;
  context.strokeStyle = picture.colours.line;
  context.stroke();
}

/** The axis and the sizes in binary units, each on a patch that keeps it readable on the stack. */
function drawScale(context: CanvasRenderingContext2D, picture: StackPicture): void {
  const { left, right } = picture.axis;
  const bottom = picture.height - BELOW + 0.5;
  context.lineWidth = 1;
  context.strokeStyle = picture.colours.line2;
  context.beginPath();
  context.moveTo(left, bottom);
  context.lineTo(right, bottom);
  context.stroke();
  context.font = smallType(400);
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (const level of byteTicks(top(picture)).slice(1)) {
    const text = size(level).replace(".0 ", " ");
    const y = heightOf(picture, level);
    context.globalAlpha = 0.82;
    context.fillStyle = picture.colours.panel;
    context.beginPath();
    context.roundRect(left + 3, y - 8, context.measureText(text).width + 6, 15, 3);
    context.fill();
    context.globalAlpha = 1;
    context.fillStyle = picture.colours.ink2;
    context.fillText(text, left + 6, y + 0.5);
  }
}
