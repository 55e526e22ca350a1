/** Counts of the executed and ready tasks of each closed box at any position, found by two binary searches. */

import { NEVER, type Replay, type ShownState } from "../model/replay.ts";
import type { Layers } from "../layout/layers.ts";
import { layersAround } from "../layout/box_tree.ts";
import { countBelow } from "../binary_search.ts";
import { inChosen } from "./layer_choice.ts";
import type { Scene } from "./scene.ts";

export interface BoxCount {
  /** Number of tasks that this backward runs. */
  size: number;
  done: number;
  /** Number of tasks done at the shown position that the live session has not reached yet. */
  planned: number;
  /** Number of ready tasks, without the running one. */
  ready: number;
  /** Running task in the box; -1 for none. */
  running: number;
  state: ShownState;
}

/** Sorted places of tasks, and the positions from which they are ready. */
interface Courses {
  places: Int32Array;
  readyAts: Int32Array;
}

export class BoxCounts {
  /** Tasks of each closed box, in the drawn ones of the equal layers around it, and the innermost of these layers. */
  private readonly members: Int32Array[];
  private readonly around: (Layers | null)[];
  /** Cached courses by closed box and the shown layers around it. */
  private readonly known = new Map<string, Courses>();

  constructor(
    private readonly scene: Scene,
    readonly replay: Replay,
  ) {
    this.around = scene.layout.boxes.map(({ box }) => layersAround(box.parent));
    this.members = membersOf(scene, this.around);
  }

  private courses(card: number): Courses {
    const { choice, tree } = this.scene;
    let key = `${card}`;
    for (let each = this.around[card]; each; each = each.around) key += ` ${choice.get(each.id)}`;
    let found = this.known.get(key);
    if (found) return found;
    const tasks: number[] = [];
    const isCounted = (task: number) => this.scene.cardOf[task] === card;
    for (const member of this.members[card]) {
      const task = inChosen(member, this.around[card], choice);
      tasks.push(task);
      for (const parameter of tree.owned.get(task) ?? []) if (isCounted(parameter)) tasks.push(parameter);
    }
    const sorted = (of: Int32Array) => Int32Array.from(tasks, (task) => of[task]).filter((at) => at !== NEVER).sort();
    this.known.set(key, (found = { places: sorted(this.replay.place), readyAts: sorted(this.replay.readyAt) }));
    return found;
  }

  /** Return the counts at position `t` if `ran` tasks have actually run. `card` is an index in the layout's boxes. */
  at(card: number, t: number, ran: number): BoxCount {
    const { places, readyAts } = this.courses(card);
    const passed = countBelow(places, t);
    const done = Math.min(passed, countBelow(places, ran));
    const planned = passed - done;
    const running = places[passed] === t ? this.replay.running(t) : -1;
    const ready = countBelow(readyAts, t + 1) - passed - (running >= 0 ? 1 : 0);
    const size = places.length;
    const state = stateOfAll({ size, done, planned, ready, running });
    return { size, done, planned, ready, running, state };
  }
}

function stateOfAll({ size, done, planned, ready, running }: Omit<BoxCount, "state">): ShownState {
  if (running >= 0) return "running";
  if (size > 0 && done + planned === size) return planned ? "planned" : "done";
  return ready > 0 ? "ready" : "waiting";
}

/** Return the tasks of each closed box, without parameters owned by others and without layers that are not drawn. */
function membersOf({ layout, cardOf, tree }: Scene, around: readonly (Layers | null)[]): Int32Array[] {
  const found: number[][] = layout.boxes.map(() => []);
  cardOf.forEach((card, task) => {
    if (card < 0 || (tree.pills[task] && tree.owner[task] >= 0)) return;
    for (let each = around[card]; each; each = each.around) if (each.layerOf(task) !== each.drawn) return;
    found[card].push(task);
  });
  return found.map((tasks) => Int32Array.from(tasks));
}
