/** Data that the parts of the timeline draw: the axis, the bands and the paths. */

import type { Axis } from "../model/axis.ts";
import type { Bands } from "../model/timeline_rows.ts";
import type { Times } from "../model/task_times.ts";
import type { CurveLevels } from "../model/recompute_curves.ts";
import type { LifetimeRow } from "../model/document.ts";
import type { Lane } from "../model/device_lanes.ts";
import type { Segment } from "../model/memory.ts";
import type { Colours } from "../view_types.ts";

/** Opacity of tasks that have not run yet. */
export const FAINT = 0.36;

export interface StackPaths {
  /** Level at the top of the scale. */
  most: number;
  /** True if the highest of all policies and the shown policy have different scales. */
  hasScales: boolean;
  areas: [colour: keyof Colours, path: Path2D][];
  outlines: Path2D[];
  others: { dash: readonly number[]; path: Path2D }[];
  curves: { name: CurveLevels["curve"]["name"]; path: Path2D; area: Path2D }[];
}

export interface LifetimeBar {
  storage: number;
  segments: Segment[];
  /** True if the allocation is recorded; `isAlive` is true if the storage is never freed. */
  isBorn: boolean;
  stays: boolean;
}

export interface LifetimeBars {
  row: LifetimeRow;
  /** One bar per storage, or one for all. */
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
  /** Paths of the memory chart; null if the memory is unknown. */
  stack: StackPaths | null;
  lifetimes: readonly LifetimeBars[];
  /** Number of storages allocated in the forward; 0 if not recorded. */
  forward: number;
}
