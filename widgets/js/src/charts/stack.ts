/** The picture of memory that does not move: the stack by category, every policy's outline, scale and grid. */

import uPlot from "uplot";
import { CATEGORIES } from "../model/document.ts";
import type { MemoryLevels, Steps } from "../model/memory.ts";
import { size } from "../text.ts";
import type { Colours } from "../view.ts";
import type { TimeAxis } from "./axis.ts";
import { mixed, smallType } from "./surface.ts";

/** Around the plot: room for the peak's sentence above, for the task numbers below. */
export const ABOVE = 20;
export const BELOW = 22;

/** How much of its colour is left of what has not run yet. */
export const FAINT = 0.36;

const LINE = 1.2;
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
  const columns = Math.max(1, Math.round((picture.axis.right - picture.axis.left) * devicePixelRatio));
  const steps = picture.shown.steps(columns);
  const stack = stacked(steps);
  let isSolid = true;
  const area = (level: Float64Array, category: number): uPlot.Series => ({
    width: 0,
    fill: () => {
      const colour = picture.colours[CATEGORIES[category].key];
      return isSolid ? colour : mixed(colour, picture.colours.panel, FAINT);
    },
    points: { show: false },
    paths: (plot) => ({ fill: areaPath(plot, steps, level), stroke: null, flags: 0 }),
  });
  const line = (of: Steps, stroke: string, dash: readonly number[]): uPlot.Series => ({
    width: LINE,
    stroke,
    dash: [...dash],
    points: { show: false },
    paths: (plot) => ({ stroke: linePath(plot, of, total(of)), fill: null, flags: 0 }),
  });
  const series: uPlot.Series[] = [{}];
  for (let category = CATEGORIES.length - 1; category >= 0; category--) {
    if (picture.shown.used[category]) series.push(area(stack[category], category));
  }
  for (const { levels, dash } of picture.others) series.push(line(levels.steps(columns), picture.colours.ink2, dash));
  series.push(line(steps, picture.colours.ink, []));
  const options: uPlot.Options = {
    width: picture.width,
    height: picture.height,
    padding: [ABOVE, picture.width - picture.axis.right, BELOW, picture.axis.left],
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { time: false, range: [0, Math.max(picture.axis.places, 1)] },
      y: { range: [0, top(picture)] },
    },
    axes: [
      { show: false },
      {
        size: 0,
        ticks: { show: false },
        grid: { stroke: picture.colours.line, width: 1 },
        splits: () => byteTicks(top(picture)),
        values: (_, splits) => splits.map(() => ""),
      },
    ],
    series,
    hooks: { draw: [(plot) => drawScale(plot, picture)] },
  };
  const places = Math.max(picture.axis.places, 1);
  const data = series.map((_, index) => (index ? [0, 0] : [0, places])) as unknown as uPlot.AlignedData;
  const plot = new uPlot(options, data, (self, start) => {
    host.append(self.root);
    self.batch(() => start(self)); // now, not in a microtask: the solid picture is taken from it
  });
  const solid = copied(plot.ctx.canvas, picture.colours.panel);
  isSolid = false;
  plot.batch(() => plot.redraw(false));
  return { solid, dispose: () => plot.destroy() };
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

function linePath(plot: uPlot, steps: Steps, levels: Float64Array): Path2D {
  const path = new Path2D();
  const { left, top: upper, width, height } = plot.bbox;
  const across = width / plot.scales.x.max!;
  const down = height / plot.scales.y.max!;
  const bottom = upper + height;
  let y = bottom - levels[0] * down;
  path.moveTo(left, y);
  for (let at = 0; at < steps.count; at++) {
    const x = left + steps.times[at] * across;
    path.lineTo(x, y);
    y = bottom - levels[at] * down;
    path.lineTo(x, y);
  }
  path.lineTo(left + width, y);
  return path;
}

function areaPath(plot: uPlot, steps: Steps, levels: Float64Array): Path2D {
  const path = linePath(plot, steps, levels);
  const { left, top: upper, width, height } = plot.bbox;
  path.lineTo(left + width, upper + height);
  path.lineTo(left, upper + height);
  path.closePath();
  return path;
}

/** The axis and the sizes in binary units, each on a patch that keeps it readable on the stack. */
function drawScale(plot: uPlot, picture: StackPicture): void {
  const { ctx: context } = plot;
  const { left, right } = picture.axis;
  const bottom = picture.height - BELOW + 0.5;
  context.save();
  context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
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
  context.restore();
}

/** The canvas as it is now, on a ground that hides what it is drawn over. */
function copied(canvas: HTMLCanvasElement, ground: string): HTMLCanvasElement {
  const copy = document.createElement("canvas");
  copy.width = canvas.width;
  copy.height = canvas.height;
  const context = copy.getContext("2d")!;
  context.fillStyle = ground;
  context.fillRect(0, 0, copy.width, copy.height);
  if (canvas.width && canvas.height) context.drawImage(canvas, 0, 0);
  return copy;
}
