/** Outlines in the graph: groups of products that could run as one, that did, or that were refused. */

import type { Direction, Groups } from "./document.ts";

/** Number of colours. After the last the first is used again; the names still distinguish the groups. */
export const HUES = 6;

export interface Outline {
  /** Index among all outlines, used in the state. */
  index: number;
  direction: Direction;
  /** Name: "A", "B", ..., restarting for each direction; "" for a refused group. */
  name: string;
  hue: number;
  /** Title: `16 × addmm → bmm`; for a refused group, its products and their location. */
  title: string;
  /** Location in one phrase; for a refused group, the reason. */
  where: string;
  /** Launches before and after, and copied bytes (`32 → 5 launches, 9.5 KiB of copies`); null for a refused group. */
  cost: { launches: [number, number]; copied: number } | null;
  product: string;
  tasks: readonly number[];
}

export class Outlines {
  readonly all: readonly Outline[];
  /** Outlines that contain each task. */
  private readonly byTask = new Map<number, Outline[]>();
  /** Directions with any groups or summary. */
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

  /** Return the outlines that contain a task, refused ones last. */
  around(task: number): readonly Outline[] {
    return this.byTask.get(task) ?? [];
  }
}

/** Return the name of a number: "A" to "Z", then "AA", "AB", ... */
function nameOf(number: number): string {
  let name = "";
  for (let left = number + 1; left > 0; left = Math.floor((left - 1) / 26)) {
    name = String.fromCharCode(65 + ((left - 1) % 26)) + name;
  }
  return name;
}
