/** Paints what of the timeline stands still from frame to frame, twice: as it has run, and as it is to come. */

import { drawLanes } from "./device_lanes.ts";
import { drawLifetimes } from "./lifetimes.ts";
import { drawScale, drawStack } from "./memory_stack.ts";
import { fit } from "../canvas.ts";
import type { Picture } from "./timeline_picture.ts";

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
