/** The static part of the timeline, painted twice: as executed, and as still to come. */

import { drawLanes } from "./device_lanes.ts";
import { drawLifetimes } from "./lifetimes.ts";
import { drawScale, drawStack } from "./memory_stack.ts";
import { fit } from "../canvas.ts";
import type { Picture } from "./timeline_picture.ts";

/** Paint it on a canvas; `isSolid` selects the colours of executed tasks. */
export function paint(canvas: HTMLCanvasElement, picture: Picture, isSolid: boolean): HTMLCanvasElement {
  const { axis, width, height, colours, bands } = picture;
  const context = fit(canvas, width, height);
  if (isSolid) {
    context.fillStyle = colours.panel; // opaque, to hide the content below
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
