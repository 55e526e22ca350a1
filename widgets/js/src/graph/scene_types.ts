/** Parts of a scene: spots and wires, and the graph, boxes and layout they belong to. */

import type { Layout, PlacedStub, PlacedWire, Rect } from "../layout/layout_types.ts";
import type { Tree } from "../layout/box_tree.ts";
import type { DeckGraph } from "../model/graph.ts";
import type { Outline } from "./wire_path.ts";

/** A task, a pill or a stub, and its position. */
export interface Spot {
  kind: "task" | "pill" | "stub";
  /** The task it represents; the first one for a pill or stub of several tasks. */
  task: number;
  tasks: readonly number[];
  /** For a pill, the task beside it; otherwise the task itself. */
  user: number;
  rect: Rect;
  label: string;
  caption: string;
  /** True for a chip or a dot, which is too small for a label. */
  small: boolean;
  stub: PlacedStub["kind"] | null;
}

export interface Wire extends PlacedWire {
  /** True for the part of a wire that is outside of the equal layers at its ends, see scene.ts. */
  isOutside?: boolean;
  outline: Outline;
  bounds: Rect;
  /** True if it is one of many at an end, drawn thin. */
  fan: boolean;
}

export interface SceneParts {
  readonly graph: DeckGraph;
  readonly tree: Tree;
  readonly layout: Layout;
  readonly spots: readonly Spot[];
  readonly wires: readonly Wire[];
}
