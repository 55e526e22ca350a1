/** How many tasks of each closed box have run or are ready, at any position, by two binary searches. */

import { NEVER, type Replay, type ShownState } from "../model/replay.ts";
import type { Scene } from "./scene.ts";

export interface BoxCount {
  /** Tasks that run at all in this backward. */
  size: number;
  done: number;
  /** Done at the position that is shown, which a live session has not reached. */
  planned: number;
  /** Ready, without the one that runs. */
  ready: number;
  /** The task in it that runs; -1 for none. */
  running: number;
  state: ShownState;
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

  /** At position `t`, when `ran` tasks have really run. `card` is an index in the layout's boxes. */
  at(card: number, t: number, ran: number): BoxCount {
    const places = this.places[card];
    const passed = countBelow(places, t);
    const done = Math.min(passed, countBelow(places, ran));
    const planned = passed - done;
    const running = places[passed] === t ? this.replay.running(t) : -1;
    const ready = countBelow(this.readyAts[card], t + 1) - passed - (running >= 0 ? 1 : 0);
    const size = places.length;
    const state = stateOfAll({ size, done, planned, ready, running });
    return { size, done, planned, ready, running, state };
  }
}

function stateOfAll({ size, done, planned, ready, running }: Omit<BoxCount, "state">): ShownState {
  if (running >= 0) return "running";
  if (size > 0 && done + planned === size) return planned ? "planned" : "done";
  return done + planned + ready > 0 ? "ready" : "waiting";
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
