/** Outlines of a scene: the groups of one direction, and the selected one. */

import type { Direction } from "../model/document.ts";
import type { Outline, Outlines } from "../model/outlines.ts";
import type { Scene } from "./scene.ts";

export class Grouping {
  readonly version: number;
  /** Outlines around each spot, and around each closed box (by its index in the layout's boxes) or tasks in it. */
  readonly spots = new Map<number, Outline[]>();
  readonly cards = new Map<number, Outline[]>();
  /** Chips that show the name of each group: the group's last chip in each row. */
  readonly named = new Map<Outline, Set<number>>();

  constructor(
    readonly scene: Scene,
    readonly outlines: Outlines,
    readonly direction: Direction,
    /** Selected group; it is opaque, the others are faint. */
    readonly lit: Outline | null,
  ) {
    this.version = scene.version;
    const groups = outlines.of(direction).filter(({ name }) => name);
    for (const outline of lit && !lit.name ? [...groups, lit] : groups) this.add(outline);
  }

  private add(outline: Outline): void {
    const { scene, spots, cards } = this;
    const rows = new Map<number, number>();
    for (const task of outline.tasks) {
      if (scene.version && !scene.shows(task)) continue;
      const spot = scene.spotOf[task];
      const card = scene.cardOf[task];
      if (spot >= 0) push(spots, spot, outline);
      else if (card >= 0) push(cards, card, outline);
      if (spot < 0 || !scene.spots[spot].small) continue;
      const row = scene.rowOf[task];
      const last = rows.get(row);
      if (last === undefined || isBefore(scene, last, spot)) rows.set(row, spot);
    }
    this.named.set(outline, new Set(rows.values()));
  }
}

function isBefore({ spots }: Scene, one: number, other: number): boolean {
  const [a, b] = [spots[one].rect, spots[other].rect];
  return a.y < b.y || (a.y === b.y && a.x < b.x);
}

function push(found: Map<number, Outline[]>, key: number, outline: Outline): void {
  const there = found.get(key);
  if (!there) found.set(key, [outline]);
  else if (there.at(-1) !== outline) there.push(outline);
}
