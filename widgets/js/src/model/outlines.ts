/** What is outlined in the graph: groups of products that could run as one, that ran so, or that were refused. */

import type { Direction, Groups } from "./document.ts";

/** So many colours there are; then they begin again, and the names tell groups apart. */
export const HUES = 6;

export interface Outline {
  /** Its place among all: what the state refers to. */
  index: number;
  direction: Direction;
  /** "A", "B", ..., anew for each direction; "" for what was refused. */
  name: string;
  hue: number;
  /** `16 × addmm → bmm`; of what was refused what it is, and where. */
  title: string;
  /** In one phrase; of what was refused why. */
  where: string;
  /** `32 → 5 launches, 9.5 KiB of copies`, in two numbers and bytes; null for what was refused. */
  cost: { launches: [number, number]; copied: number } | null;
  product: string;
  tasks: readonly number[];
}

export class Outlines {
  readonly all: readonly Outline[];
  /** By task those of groups that it is in. */
  private readonly byTask = new Map<number, Outline[]>();
  /** The directions of which anything is known. */
  readonly directions: readonly Direction[];

  constructor(readonly content: Groups) {
    const counts = new Map<Direction, number>();
    const found = content.found.map(({ direction, title, where, product, launches, copied, tasks }, index): Outline => {
      const number = counts.get(direction) ?? 0;
      counts.set(direction, number + 1);
      const cost = { launches, copied };
      return { index, direction, name: nameOf(number), hue: number % HUES, title, where, product, cost, tasks };
    });
    const refused = content.refused.map(({ direction, title, why, tasks }, at): Outline => {
      const index = found.length + at;
      return { index, direction, name: "", hue: 0, title, where: why, product: "", cost: null, tasks };
    });
    this.all = [...found, ...refused];
    for (const outline of this.all) {
      for (const task of outline.tasks) {
        const others = this.byTask.get(task);
        if (others) others.push(outline);
        else this.byTask.set(task, [outline]);
      }
    }
    this.directions = Object.keys(content.said) as Direction[];
  }

  of(direction: Direction): Outline[] {
    return this.all.filter((outline) => outline.direction === direction);
  }

  /** Those that a task is in, refused ones last. */
  around(task: number): readonly Outline[] {
    return this.byTask.get(task) ?? [];
  }
}

/** "A" to "Z", then "AA", "AB", ... */
function nameOf(number: number): string {
  let name = "";
  for (let left = number + 1; left > 0; left = Math.floor((left - 1) / 26)) {
    name = String.fromCharCode(65 + ((left - 1) % 26)) + name;
  }
  return name;
}
