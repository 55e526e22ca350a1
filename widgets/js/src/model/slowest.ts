/** The slowest operations and modules of a measured backward, as in engine/recording/slowest.py. */

import { type DeckDocument, NONE } from "./document.ts";
import type { DeckGraph } from "./graph.ts";
import { durations } from "./task_times.ts";

/** The time of an operation's or a module's tasks, nanoseconds, their number, and the slowest of them. */
export interface Slow {
  name: string;
  elapsed: number;
  tasks: number;
  slowest: number;
}

export interface Slowest {
  operations: Slow[];
  modules: Slow[];
  total: number;
  /** Number of tasks that ran. */
  tasks: number;
}

/** Return the slowest operations and modules, or null if the time of a task of the session's order is unknown. */
export function slowestOf(document: DeckDocument, graph: DeckGraph): Slowest | null {
  const { order } = document.schedules[0];
  const times = durations(document);
  if (!order.length || document.is_simulated || !order.every((task) => times.has(task))) return null;
  const total = order.reduce((sum, task) => sum + times.get(task)!, 0);
  const summed = (nameOf: (task: number) => string) => {
    const found = new Map<string, Slow>();
    for (const task of order) {
      const name = nameOf(task);
      if (!name) continue;
      const slow = found.get(name) ?? { name, elapsed: 0, tasks: 0, slowest: task };
      slow.elapsed += times.get(task)!;
      slow.tasks++;
      if (times.get(task)! > times.get(slow.slowest)!) slow.slowest = task;
      found.set(name, slow);
    }
    return [...found.values()].sort((one, other) => other.elapsed - one.elapsed);
  };
  // The model itself has the title; a part of a sequence is named as in inspector/graph/graph.py.
  const moduleOf = (task: number) =>
    document.tasks.call[task] === NONE ? "" : (graph.module(task) || document.title).replace(/^\d+$/, "module $&");
  return { operations: summed((task) => graph.name(task)), modules: summed(moduleOf), total, tasks: order.length };
}
