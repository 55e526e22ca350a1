/** Breadcrumbs: the open boxes around the view whose headers are out of view. */

import type { PlacedBox, Rect } from "../layout/layout_types.ts";
import { el } from "../dom.ts";
import { HEADER_HEIGHT } from "./draw_box.ts";
import type { Scene } from "./scene.ts";

export class Crumbs {
  readonly element = el("nav", { class: "crumbs", "aria-label": "modules around the visible part" });
  private shown: readonly PlacedBox[] = [];

  /** `close` is called when a crumb is clicked. */
  constructor(private readonly close: (box: PlacedBox) => void) {}

  update(scene: Scene, area: Rect): void {
    const boxes = hiddenHeaders(scene, area);
    if (boxes.length === this.shown.length && boxes.every((box, index) => box === this.shown[index])) return;
    this.shown = boxes;
    this.element.replaceChildren(...(boxes.length ? ["in "] : []), ...boxes.map((box) => this.crumb(box)));
  }

  get isEmpty(): boolean {
    return !this.shown.length;
  }

  private crumb(box: PlacedBox): HTMLElement {
    const made = el("button", { type: "button", title: `fold ${box.box.path || box.box.title}` }, box.box.title);
    made.addEventListener("click", () => this.close(box));
    return made;
  }
}

/** Return the boxes with hidden headers, outermost first. */
function hiddenHeaders(scene: Scene, area: Rect): PlacedBox[] {
  return scene
    .boxesAround(area.x + area.width / 2, area.y + area.height / 2)
    .filter(({ rect }) => rect.y + HEADER_HEIGHT < area.y || rect.x + HEADER_HEIGHT < area.x);
}
