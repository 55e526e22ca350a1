/** Hit testing of the pointer. */

import type { PlacedBox } from "../layout/layout_types.ts";
import { HEADER_HEIGHT } from "./draw_box.ts";
import { layerAt } from "./draw_layers.ts";
import { inside } from "./spatial_index.ts";
import type { Scene } from "./scene.ts";
import type { Spot, Wire } from "./scene_types.ts";

export type Hit = { spot: Spot } | { box: PlacedBox } | { layersOf: PlacedBox; layer: number } | null;

/** Distance at which the pointer still hits a task, pixels of the screen. */
const SLACK = 2;

/**
 * Return the task, pill or stub at a point of the picture, else the closed box, or the open box whose header is there.
 */
export function hitAt(scene: Scene, x: number, y: number, scale: number): Hit {
  for (const placed of scene.layout.boxes) {
    const layer = layerAt(placed, x, y);
    if (layer >= 0) return { layersOf: placed, layer };
  }
  const slack = SLACK / scale;
  const near = { x: x - slack, y: y - slack, width: 2 * slack, height: 2 * slack };
  const [first] = scene.grid.search(near).sort((one, other) => away(scene, one, x, y) - away(scene, other, x, y));
  if (first !== undefined) return { spot: scene.spots[first] };
  const box = scene.layout.boxes.findLast(({ rect, closed }) =>
    inside(closed ? rect : { ...rect, height: Math.min(rect.height, HEADER_HEIGHT) }, x, y),
  );
  return box ? { box } : null;
}

/** Return the distance from a spot's middle. */
function away(scene: Scene, index: number, x: number, y: number): number {
  const { rect } = scene.spots[index];
  return Math.hypot(rect.x + rect.width / 2 - x, rect.y + rect.height / 2 - y);
}

/** Return the wires near a point, the shortest first. */
export function wiresNear(scene: Scene, x: number, y: number, scale: number): Wire[] {
  return scene
    .wiresNear(x, y, (2 * SLACK) / scale)
    .sort((one, other) => extent(one) - extent(other));
}

function extent({ bounds }: Wire): number {
  return bounds.width + bounds.height;
}
