/** Ring around the item with the keyboard focus. The focused button itself is in an invisible list. */

import type { Rect } from "../layout/layout_types.ts";
import { el } from "../dom.ts";
import { layerRect } from "./draw_layers.ts";
import type { CameraView } from "./camera.ts";
import type { Entry } from "./accessible_list.ts";
import type { Motion } from "./layout_animation.ts";
import type { Scene } from "./scene.ts";

export class FocusRing {
  readonly element = el("div", { class: "focused", "aria-hidden": "true", hidden: "hidden" });

  /** Show the ring; `share` is the progress of a layout transition. */
  show(focused: Entry | null, scene: Scene, motion: Motion | null, share: number, { x, y, k }: CameraView): void {
    const rect = focused && rectOf(focused, scene, motion, share);
    this.element.hidden = !rect;
    if (!rect) return;
    const { style } = this.element;
    style.transform = `translate(${x + rect.x * k}px, ${y + rect.y * k}px)`;
    style.width = `${rect.width * k}px`;
    style.height = `${rect.height * k}px`;
  }
}

function rectOf(entry: Entry, scene: Scene, motion: Motion | null, share: number): Rect | null {
  if ("spot" in entry) {
    const index = scene.spotOf[entry.spot.task];
    return index < 0 ? null : (motion?.spot(index, share) ?? scene.spots[index].rect);
  }
  if ("layer" in entry) {
    const index = scene.boxes.get(entry.layersOf.box.id);
    return index === undefined ? null : layerRect(scene.layout.boxes[index], entry.layer);
  }
  const index = scene.boxes.get(entry.box.box.id);
  return index === undefined ? null : (motion?.box(index, share) ?? scene.layout.boxes[index].rect);
}
