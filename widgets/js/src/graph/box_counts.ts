/** How many tasks of each closed box have run or are ready, at any position, by two binary searches. */

import { NEVER, type Replay, type TaskState } from "../model/replay.ts";
import type { Scene } from "./scene.ts";

export interface BoxCount {
  /** Tasks that run at all in this backward. */
  size: number;
  done: number;
  /** Ready, without the one that runs. */
  ready: number;
  /** The task in it that runs; -1 for none. */
  running: number;
  state: TaskState;
}

export class BoxCounts {
  /** By closed box, sorted: the places of its tasks, and the positions from which they are ready. */
  private readonly places: Int32Array[];
  private readonly readyAts: Int32Array[];

  constructor(
    scene: Scene,
    readonly replay: Replay,
  ) {
    const members = membersOf(scene);
    const sorted = (tasks: Int32Array, of: Int32Array) =>
      tasks.map((task) => of[task]).filter((at) => at !== NEVER).sort();
    this.places = members.map((tasks) => sorted(tasks, replay.place));
    this.readyAts = members.map((tasks) => sorted(tasks, replay.readyAt));
  }

  /** `card` is an index in the layout's boxes. */
  at(card: number, t: number): BoxCount {
    const places = this.places[card];
    const done = countBelow(places, t);
    const running = places[done] === t ? this.replay.running(t) : -1;
    const ready = countBelow(this.readyAts[card], t + 1) - done - (running >= 0 ? 1 : 0);
    const size = places.length;
    const begun = done > 0 || ready > 0;
    const state = running >= 0 ? "running" : size > 0 && done === size ? "done" : begun ? "ready" : "waiting";
    return { size, done, ready, running, state };
  }
}

function membersOf(scene: Scene): Int32Array[] {
  const found: number[][] = scene.layout.boxes.map(() => []);
  scene.cardOf.forEach((card, task) => {
    if (card >= 0) found[card].push(task);
  });
  return found.map((tasks) => Int32Array.from(tasks));
}

/** How many of the sorted values are less than `limit`. */
export function countBelow(sorted: Int32Array, limit: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}
