/** The timeline's picture: the axis, the bands and the paths that its parts draw. */

import type { Axis } from "../model/axis.ts";
import type { Bands } from "../model/timeline_rows.ts";
import type { Times } from "../model/task_times.ts";
import type { CurveLevels } from "../model/recompute_curves.ts";
import type { LifetimeRow } from "../model/document.ts";
import type { Lane } from "../model/device_lanes.ts";
import type { Segment } from "../model/memory.ts";
import type { Colours } from "../view_types.ts";

/** How much of its colour is left of what has not run yet. */
export const FAINT = 0.36;

export interface StackPaths {
  /** The level at the top of the scale. */
  most: number;
  areas: [colour: keyof Colours, path: Path2D][];
  outlines: Path2D[];
  others: { dash: readonly number[]; path: Path2D }[];
  curves: { name: CurveLevels["curve"]["name"]; path: Path2D; area: Path2D }[];
}

export interface LifetimeBar {
  storage: number;
  segments: Segment[];
  /** Whether something tells when it was born, and whether it is alive at the end. */
  isBorn: boolean;
  stays: boolean;
}

export interface LifetimeBars {
  row: LifetimeRow;
  /** One for each storage, or one for all. */
  bars: LifetimeBar[];
}

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
