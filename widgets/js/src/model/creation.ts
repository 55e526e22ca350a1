/** Times at which the forward created the tasks' nodes. */

import { countBelow } from "../binary_search.ts";
import { nanoseconds } from "../format.ts";
import type { DeckGraph } from "./graph.ts";

/** Creation times of a graph. */
export interface Creation {
  /** Tasks with a known time, earliest first. */
  tasks: Int32Array;
  /** Their times, nanoseconds since the first of them; starting the forward may take much longer. */
  times: Float64Array;
  /** Index in `tasks` of each task; -1 if its time is unknown. */
  index: Int32Array;
  /** The last time; at least 1. */
  end: number;
}

const known = new WeakMap<DeckGraph, Creation | null>();

/** Return the creation times; null if no capture recorded them. */
export function creationOf(graph: DeckGraph): Creation | null {
  let found = known.get(graph);
  if (found === undefined) known.set(graph, (found = read(graph)));
  return found;
}

function read({ count, document: { tasks: { created } } }: DeckGraph): Creation | null {
  if (!created) return null;
  const tasks = Int32Array.from(created.keys()).filter((task) => created[task] >= 0);
  tasks.sort((one, other) => created[one] - created[other] || one - other);
  const times = Float64Array.from(tasks, (task) => created[task] - created[tasks[0]]);
  const index = new Int32Array(count).fill(-1);
  tasks.forEach((task, at) => (index[task] = at));
  return { tasks, times, index, end: Math.max(1, times.at(-1) ?? 0) };
}

/** Return the index in `tasks` of the task created nearest to a time. */
export function nearestTo({ times }: Creation, time: number): number {
  const after = countBelow(times, time);
  return after && (after === times.length || time - times[after - 1] < times[after] - time) ? after - 1 : after;
}

/** Return when a task was created, as a share of the forward; -1 if unknown. */
export function createdAt(graph: DeckGraph, task: number): number {
  const found = creationOf(graph);
  const at = found?.index[task] ?? -1;
  return at < 0 ? -1 : found!.times[at] / found!.end;
}

/** Return `created 3.20 ms after the first node, #96`; without a known time `created #96`. */
export function createdWords(graph: DeckGraph, task: number): string {
  const found = creationOf(graph);
  const at = found?.index[task] ?? -1;
  return `created ${at < 0 ? "" : `${nanoseconds(found!.times[at])} after the first node, `}#${task}`;
}

/** Return `created 1.20 ms to 3.20 ms after the first node`, for two shares of the time. */
export function creationRange(graph: DeckGraph, first: number, last: number): string {
  const end = creationOf(graph)?.end ?? 0;
  return `created ${nanoseconds(first * end)}${last > first ? ` to ${nanoseconds(last * end)}` : ""} after the first node`;
}
