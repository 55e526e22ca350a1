/** A treemap: tooltips of its boxes, and zooming into a box so that it fills the figure. */

import { type HoverData, type TreeData, linesOf, numbers } from "./data.ts";
import type { Tip } from "./tooltip.ts";

const HEAD = 18; // height in pixels of an outer box's title bar, as in widgets/pages/treemap.py
const PAD = 3;

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Return a nearly square rectangle for each of the descending values, in rows along the shorter side. */
export function squarified(values: number[], room: Rect): Rect[] {
  let { x, y, width, height } = room;
  const scale = (width * height) / (values.reduce((sum, each) => sum + each, 0) || 1);
  const areas = values.map((each) => each * scale);
  const found: Rect[] = [];
  for (let at = 0; at < areas.length; ) {
    const side = Math.min(width, height);
    let end = at + 1;
    while (end < areas.length && worst(areas.slice(at, end + 1), side) <= worst(areas.slice(at, end), side)) end++;
    const row = areas.slice(at, end);
    const thick = side ? row.reduce((sum, each) => sum + each, 0) / side : 0;
    let along = 0;
    for (const each of row) {
      const length = thick ? each / thick : 0;
      found.push(
        width >= height
          ? { x, y: y + along, width: thick, height: length }
          : { x: x + along, y, width: length, height: thick },
      );
      along += length;
    }
    if (width >= height) [x, width] = [x + thick, Math.max(width - thick, 0)];
    else [y, height] = [y + thick, Math.max(height - thick, 0)];
    at = end;
  }
  return found;
}

/** Return the largest aspect ratio in a row of rectangles. */
function worst(row: number[], side: number): number {
  const total = row.reduce((sum, each) => sum + each, 0);
  if (!total || !side) return Infinity;
  const far = (each: number) => Math.max((side ** 2 * each) / total ** 2, total ** 2 / (side ** 2 * each));
  return Math.max(...row.map((each) => (each ? far(each) : Infinity)));
}

export class Tree {
  private boxes: HTMLElement[];
  private around: number[];
  private inside = new Map<number, number[]>();
  private sizes: number[];
  private top = 0;
  private chosen = -1;

  constructor(
    private root: HTMLElement,
    private figure: TreeData,
    private data: HoverData,
    private tip: Tip,
  ) {
    this.boxes = [...root.children] as HTMLElement[];
    this.sizes = numbers(data, figure.sizes);
    this.around = numbers(data, figure.around);
    for (const [box, outer] of this.around.entries()) this.inside.set(outer, [...(this.inside.get(outer) ?? []), box]);
    root.addEventListener("pointermove", (event) => {
      const box = this.boxOf(event);
      if (box >= 0 && event.pointerType !== "touch") this.showTip(box, event.clientX, event.clientY);
    });
    root.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") this.forget(); // lifting a finger also fires this event
    });
    root.addEventListener("blur", () => this.forget());
    root.addEventListener("click", (event) => {
      const box = this.boxOf(event);
      const isTouch = (event as PointerEvent).pointerType === "touch";
      // Touch screens have no hover: the first tap shows the tooltip, the second zooms in.
      if (isTouch && box >= 0 && box !== this.chosen) this.showTip(box, event.clientX, event.clientY);
      else this.press(box);
    });
    root.addEventListener("keydown", (event) => this.key(event));
  }

  private boxOf(event: Event): number {
    return this.boxes.indexOf((event.target as Element).closest("i") as HTMLElement);
  }

  private showTip(box: number, x: number, y: number): void {
    this.forget();
    this.chosen = box;
    this.boxes[box].classList.add("at");
    this.tip.show(linesOf(this.data, this.figure, box).map((text) => ({ text })), x, y);
  }

  private forget(): void {
    this.boxes[this.chosen]?.classList.remove("at");
    this.chosen = -1;
    this.tip.hide();
  }

  /** Zoom into a box, or into its parent if it is a leaf. Pressing the box that fills the figure zooms out. */
  private press(box: number): void {
    if (box < 0) return;
    const into = this.inside.has(box) ? box : this.around[box];
    this.go(into === this.top ? Math.max(this.around[this.top], 0) : into);
  }

  private go(top: number): void {
    this.forget();
    this.top = top;
    this.root.classList.toggle("inside", top > 0);
    for (const box of this.boxes) box.classList.add("off");
    const waiting: [number, Rect][] = [[top, { x: 0, y: 0, width: this.root.clientWidth, height: this.root.clientHeight }]];
    for (let next = waiting.pop(); next; next = waiting.pop()) {
      const [box, { x, y, width, height }] = next;
      const { style, classList } = this.boxes[box];
      classList.remove("off");
      Object.assign(style, {
        left: `${(100 * x) / this.root.clientWidth}%`,
        top: `${y}px`,
        width: `${(100 * width) / this.root.clientWidth}%`,
        height: `${height}px`,
      });
      const parts = [...(this.inside.get(box) ?? [])].sort((one, other) => this.sizes[other] - this.sizes[one]);
      const head = Math.min(HEAD, height / 4);
      const room = { x: x + PAD, y: y + head, width: Math.max(0, width - 2 * PAD), height: Math.max(0, height - head - PAD) };
      const rects = squarified(parts.map((each) => this.sizes[each]), room);
      waiting.push(...parts.map((each, at): [number, Rect] => [each, rects[at]]));
    }
  }

  private key(event: KeyboardEvent): void {
    const seen = this.boxes.flatMap((box, number) => (box.classList.contains("off") ? [] : [number]));
    const step = ({ ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 } as Record<string, number>)[event.key];
    if (step) {
      const at = seen.indexOf(this.chosen);
      const box = seen[Math.max(0, Math.min(at + step, seen.length - 1))];
      const { left, top } = this.boxes[box].getBoundingClientRect();
      this.showTip(box, left, top);
    } else if (event.key === "Enter" && this.chosen >= 0) this.press(this.chosen);
    else if (event.key === "Escape" || event.key === "Backspace") this.go(Math.max(this.around[this.top], 0));
    else return;
    event.preventDefault();
  }
}
