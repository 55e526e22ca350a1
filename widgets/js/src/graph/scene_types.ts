/** The parts of a scene: spots and wires, with the graph, the boxes and the layout that they come from. */

import type { Layout, PlacedStub, PlacedWire, Rect } from "../layout/layout_types.ts";
import type { Tree } from "../layout/box_tree.ts";
import type { DeckGraph } from "../model/graph.ts";
import type { Outline } from "./wire_path.ts";

/** A task, a pill or a stub, where it is. */
export interface Spot {
  kind: "task" | "pill" | "stub";
  /** The task that it stands for; of a pill of several and of a stub to several, the first. */
  task: number;
  tasks: readonly number[];
  /** Of a pill the task that it is beside; otherwise the task itself. */
  user: number;
  rect: Rect;
  label: string;
  caption: string;
  /** A chip or a dot: too small for a label. */
  small: boolean;
  stub: PlacedStub["kind"] | null;
}

export interface Wire extends PlacedWire {
  outline: Outline;
  bounds: Rect;
  /** One of many at an end: drawn thin. */
  fan: boolean;
}

export interface SceneParts {
  readonly graph: DeckGraph;
  readonly tree: Tree;
  readonly layout: Layout;
  readonly spots: readonly Spot[];
  readonly wires: readonly Wire[];
}
