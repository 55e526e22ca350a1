/** What the layout gives to those who draw: everything in pixels of the picture, y downwards, gradients flow down. */

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

/** A task. `caption` names the module that consists of it alone; a `chip` is too small for its label. */
export interface PlacedTask {
  task: number;
  rect: Rect;
  label: string;
  caption: string;
  chip: boolean;
}

/** A parameter beside one of its users, as its AccumulateGrad task (very many of one user are one pill). */
export interface PlacedPill {
  tasks: number[];
  user: number;
  rect: Rect;
  label: string;
  /** Too small for its label. */
  dot: boolean;
}

/**
 * The end of a wire that is not drawn in full, beside a task, or a closed box as `~box.id`: "parameter" (its pill is
 * elsewhere), "to" or "from" other tasks.
 */
export interface PlacedStub {
  kind: "parameter" | "to" | "from";
  task: number;
  others: number[];
  rect: Rect;
  label: string;
  /** Too small for its label. */
  dot: boolean;
}

/** The label of a row of chips: "Addmm ×50". */
export interface PlacedRow {
  tasks: number[];
  rect: Rect;
  label: string;
}

/** A module or a run of tasks. A closed one shows how many of its tasks have run. */
export interface PlacedBox {
  box: Box;
  rect: Rect;
  /** Shortened to fit. */
  title: string;
  subtitle: string;
  /** As `box.depth`: 1 for the outermost. */
  depth: number;
  closed: boolean;
  /** Where the buttons of the equal layers begin that it is drawn for, from its left edge; 0 where it has none. */
  layersAt: number;
}

/**
 * One line for some edges. `from` and `to` are what it joins: a task, or a closed box as `~box.id`; `points` are the
 * corners x, y, x, y, ... A step that is neither upright nor level is drawn as an S-curve that leaves and arrives
 * upright: straight it would cut corners. Without points it is too small to be drawn. "parameter": to a pill or stub;
 * "out": from `from` to the next of equal layers; "in": from that to `to`.
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
  /** Outermost first. */
  boxes: PlacedBox[];
  tasks: PlacedTask[];
  pills: PlacedPill[];
  stubs: PlacedStub[];
  rows: PlacedRow[];
  wires: PlacedWire[];
}
