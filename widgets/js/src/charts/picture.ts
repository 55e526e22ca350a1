/** The timeline's picture: what of it stands still from frame to frame, drawn twice: as it has run, and as it is to come. */

import type { Axis } from "../model/axis.ts";
import type { Bands } from "../model/bands.ts";
import type { Times } from "../model/clock.ts";
import type { Lane } from "../model/lanes.ts";
import type { Colours } from "../view.ts";
import { drawLanes } from "./lanes.ts";
import { drawLifetimes, type LifetimeBars } from "./lifetimes.ts";
import { drawScale, drawStack, type StackPaths } from "./stack.ts";
import { fit } from "./surface.ts";

/** How much of its colour is left of what has not run yet. */
export const FAINT = 0.36;

export interface Picture {
  axis: Axis;
  bands: Bands;
  width: number;
  height: number;
  colours: Colours;
  times: Times | null;
  lanes: readonly Lane[];
  /** null where the memory is not known. */
  stack: StackPaths | null;
  lifetimes: readonly LifetimeBars[];
  /** How many storages were born in the forward; 0 where that was not recorded. */
  forward: number;
}

/** Draws all of it on a canvas; `isSolid`: as what has run. */
export function paint(canvas: HTMLCanvasElement, picture: Picture, isSolid: boolean): HTMLCanvasElement {
  const { axis, width, height, colours, bands } = picture;
  const context = fit(canvas, width, height);
  if (isSolid) {
    context.fillStyle = colours.panel; // a ground that hides what it is drawn over
    context.fillRect(0, 0, width, height);
  }
  context.save();
  context.beginPath();
  context.rect(axis.left - 1, 0, axis.right - axis.left + 2, height);
  context.clip();
  drawLanes(context, picture, isSolid);
  if (picture.stack) drawStack(context, picture, picture.stack, isSolid);
  drawLifetimes(context, picture, isSolid);
  context.restore();
  context.fillStyle = colours.line;
  for (const top of [bands.memory.top, bands.lifetimes.top, bands.ruler]) context.fillRect(0, top, width, 1);
  if (picture.stack) drawScale(context, picture, picture.stack);
  return canvas;
}
