/** Context of the drawing functions: a pen, the colours, the state and the frame. */

import type { Colours } from "./loop_canvas.ts";
import type { State } from "./state.ts";

/** Positions of the parts, in CSS pixels. */
export interface Frame {
  width: number;
  height: number;
  /** Left and right edge of the parts over the axis of steps. */
  left: number;
  right: number;
  lossTop: number;
  rateTop: number;
  heatTop: number;
  heatHeight: number;
  memoryTop: number;
  rulerTop: number;
}

export type Pen = CanvasRenderingContext2D;

export interface Drawing {
  pen: Pen;
  c: Colours;
  state: State;
  frame: Frame;
  x: (step: number) => number;
}
