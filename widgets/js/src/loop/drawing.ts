/** What each part of the picture is drawn with: a pen, the colours, the state, and where things stand. */

import type { Colours } from "./loop_canvas.ts";
import type { State } from "./state.ts";

/** Where things stand, in CSS pixels. */
export interface Frame {
  width: number;
  height: number;
  /** Left and right of all that is over steps. */
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
