/**
 * The scene of the small document, laid out by hand: one box, open or closed, around Mm with its parameter and Relu.
 */

import { Scene } from "../src/graph/scene.ts";
import type { Layout, Rect } from "../src/layout/layout_types.ts";
import type { Box, Tree } from "../src/layout/box_tree.ts";
import { Store } from "../src/store.ts";
import { smallDocument } from "./small_document.ts";

export const SUM: Rect = { x: 40, y: 0, width: 60, height: 20 };
export const MM: Rect = { x: 40, y: 80, width: 60, height: 20 };
export const WEIGHT: Rect = { x: 110, y: 82, width: 70, height: 16 };
export const RELU: Rect = { x: 40, y: 120, width: 60, height: 20 };
export const OPEN_BOX: Rect = { x: 20, y: 50, width: 180, height: 110 };
export const CARD: Rect = { x: 20, y: 50, width: 140, height: 48 };

export function smallScene(closed: boolean, module = "encoder"): { store: Store; scene: Scene } {
  const store = new Store(smallDocument(module), null);
  const box = { kind: "module", layers: null, id: 1, path: module, title: module, subtitle: "Linear", children: [0, 1], size: 3, depth: 0 } as Partial<Box>;
  const top = { kind: "module", layers: null, id: 0, parent: null, children: [box, 2], size: 4 } as Box;
  const tree: Partial<Tree> = {
    top,
    boxes: [top, { ...box, parent: top } as Box],
    boxOf: Int32Array.of(1, 1, 0, 1),
    standIn: Int32Array.of(0, 1, 2, 3),
    layersOf: new Map(),
    pills: Uint8Array.of(0, 0, 0, 1),
    owner: Int32Array.of(-1, -1, -1, 1),
    owned: new Map([[1, [3]]]),
  };
  return { store, scene: new Scene(store.graph, tree as Tree, layout(tree.boxes?.[1] as Box, closed)) };
}

function layout(box: Box, closed: boolean): Layout {
  const task = (number: number, rect: Rect, label: string) => ({ task: number, rect, label, caption: "", chip: false });
  const placed = { box, title: box.title, subtitle: box.subtitle, depth: 0, layersAt: 0 };
  const sum = task(2, SUM, "Sum");
  if (closed) {
    const wire = { kind: "gradient" as const, edges: [2], from: 2, to: ~box.id, points: [70, 20, 70, 50] };
    const boxes = [{ ...placed, rect: CARD, closed }];
    return { width: 200, height: 110, rise: 0, boxes, tasks: [sum], pills: [], stubs: [], rows: [], wires: [wire] };
  }
  return {
    width: 200,
    height: 160,
    rise: 0,
    boxes: [{ ...placed, rect: OPEN_BOX, closed }],
    tasks: [sum, task(1, MM, "Mm"), task(0, RELU, "Relu")],
    pills: [{ tasks: [3], user: 1, rect: WEIGHT, label: "weight", dot: false }],
    stubs: [],
    rows: [],
    wires: [
      { kind: "gradient", edges: [2], from: 2, to: 1, points: [70, 20, 70, 80] },
      { kind: "gradient", edges: [0], from: 1, to: 0, points: [70, 100, 70, 120] },
      { kind: "parameter", edges: [1], from: 1, to: 3, points: [100, 90, 110, 90] },
    ],
  };
}
