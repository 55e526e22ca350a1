/** Tasks upstream and downstream of one task: the sources of its gradient, and its destinations. */

import type { DeckGraph } from "../model/graph.ts";
import type { State } from "../store.ts";
import type { Scene } from "./scene.ts";

/** Flags of a task or a wire. */
export const UPSTREAM = 1;
export const DOWNSTREAM = 2;

export interface Reach {
  task: number;
  /** Flags of each task. The task itself has both. */
  tasks: Uint8Array;
  upstream: number;
  downstream: number;
}

/**
 * Return the task whose upstream and downstream tasks are shown: the selected one, or during a search its only match.
 * Once the search field has lost the focus, no tasks are faded.
 */
export function reachedFrom(state: Pick<State, "selected" | "matches" | "searching">): number | null {
  const { selected, matches, searching } = state;
  if (matches && !searching) return null;
  if (selected !== null) return selected;
  const first = matches?.indexOf(1) ?? -1;
  return first >= 0 && matches?.indexOf(1, first + 1) === -1 ? first : null;
}

export function reachOf(graph: DeckGraph, task: number): Reach {
  const up = graph.reach(task, true);
  const down = graph.reach(task, false);
  const tasks = new Uint8Array(graph.count);
  let upstream = 0;
  let downstream = 0;
  for (let each = 0; each < tasks.length; each++) {
    tasks[each] = (up[each] ? UPSTREAM : 0) | (down[each] ? DOWNSTREAM : 0);
    upstream += up[each];
    downstream += down[each];
  }
  tasks[task] = UPSTREAM | DOWNSTREAM;
  return { task, tasks, upstream, downstream };
}

/** Return the flags of each wire. */
export function wiresOf(reach: Reach, scene: Scene): Uint8Array {
  const { task, next } = scene.graph.document.edges;
  return Uint8Array.from(scene.wires, ({ edges }) => {
    let flags = 0;
    for (const edge of edges) flags |= reach.tasks[task[edge]] & reach.tasks[next[edge]];
    return flags;
  });
}

/** Return the flags of each closed box. */
export function cardsOf(reach: Reach, scene: Scene): Uint8Array {
  const cards = new Uint8Array(scene.layout.boxes.length);
  scene.cardOf.forEach((card, task) => {
    if (card >= 0) cards[card] |= reach.tasks[task];
  });
  return cards;
}

/** Return how many tasks of each closed box match the search. */
export function matchesOf(matches: Uint8Array, scene: Scene): Int32Array {
  const cards = new Int32Array(scene.layout.boxes.length);
  scene.cardOf.forEach((card, task) => {
    if (card >= 0) cards[card] += matches[task];
  });
  return cards;
}
