/** Output of the layout, in pixels of the picture. y points down, and gradients flow down. */

import type { Box } from "./box_tree.ts";

export interface Size {
  width: number;
  height: number;
}

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** A task. `caption` names the module that consists only of this task; a `chip` is too small for its label. */
export interface PlacedTask {
  task: number;
  rect: Rect;
  label: string;
  caption: string;
  chip: boolean;
}

/** A parameter beside one of its users, as its AccumulateGrad task. Very many parameters of one user share one pill. */
export interface PlacedPill {
  tasks: number[];
  user: number;
  rect: Rect;
  label: string;
  /** True if it is too small for its label. */
  dot: boolean;
}

/**
 * One end of a wire that is not drawn completely, beside a task or a closed box (`~box.id`). Kinds: "parameter" (its
 * pill is elsewhere), "to" or "from" other tasks.
 */
export interface PlacedStub {
  kind: "parameter" | "to" | "from";
  task: number;
  others: number[];
  rect: Rect;
  label: string;
  /** True if it is too small for its label. */
  dot: boolean;
}

/** Label of a row of chips: "Addmm ×50". */
export interface PlacedRow {
  tasks: number[];
  rect: Rect;
  label: string;
}

/** A module or a run of tasks. A closed one shows how many of its tasks have run. */
export interface PlacedBox {
  box: Box;
  rect: Rect;
  /** Title, shortened to fit. */
  title: string;
  subtitle: string;
  /** Depth as in `box.depth`: 1 for the outermost. */
  depth: number;
  closed: boolean;
  /** Left end of the buttons of equal layers, relative to the box; 0 without buttons. */
  layersAt: number;
}

/**
 * A line for some edges. `from` and `to` are its ends: a task, or a closed box as `~box.id`; `points` are its corners
 * x, y, x, y, ... A step that is neither vertical nor horizontal is drawn as an S-curve with vertical ends, because a
 * straight line would cut corners. A wire without points is too small to be drawn. Kinds: "parameter": to a pill or
 * stub; "out": from `from` to the next of equal layers; "in": from there to `to`.
 */
export interface PlacedWire {
  kind: "gradient" | "parameter" | "out" | "in";
  edges: number[];
  from: number;
  to: number;
  points: number[];
}

export interface Layout {
  width: number;
  height: number;
  /** Longest way up of a wire. */
  rise: number;
  /** Boxes, outermost first. */
  boxes: PlacedBox[];
  tasks: PlacedTask[];
  pills: PlacedPill[];
  stubs: PlacedStub[];
  rows: PlacedRow[];
  wires: PlacedWire[];
}
