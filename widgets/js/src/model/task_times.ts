/** Task times for the clock axis: the recorded clock, or the recorded durations one after another. */

import type { Clock, DeckDocument } from "./document.ts";
import type { Replay } from "./replay.ts";

export interface Times {
  /**
   * Start and end by place, nanoseconds since the start of the backward. If devices overlap, a later place may start
   * earlier.
   */
  start: Float64Array;
  end: Float64Array;
  /** End of the last task. */
  total: number;
  /** True if all durations are known; otherwise the missing ones are estimated. */
  isWhole: boolean;
  still: NonNullable<Clock["still"]>;
}

/**
 * Return the times of a schedule, or null if none is known. Tasks that have not run are assumed to take the average
 * duration.
 */
export function timesOf(document: DeckDocument, replay: Replay): Times | null {
  const { order, clock } = replay.schedule;
  const lasting = durations(document);
  if (!lasting.size && !clock?.start.length) return null;
  const sum = [...lasting.values()].reduce((total, each) => total + each, 0);
  const mean = lasting.size ? sum / lasting.size : 0;
  const times = { start: new Float64Array(order.length), end: new Float64Array(order.length), total: 0 };
  const begins = document.queues === "per device" ? sideBySide(replay, times) : () => times.total;
  order.forEach((task, place) => {
    const isKnown = clock && place < clock.start.length;
    times.start[place] = isKnown ? clock.start[place] : begins(place);
    times.end[place] = times.start[place] + (isKnown ? clock.duration[place] : (lasting.get(task) ?? mean));
    times.total = Math.max(times.total, times.end[place]);
  });
  const isWhole = order.every((task) => lasting.has(task));
  return times.total ? { ...times, isWhole, still: clock?.still ?? [] } : null;
}

/**
 * Return a function for the earliest start of the task at a place: its device is free and its predecessors have ended.
 */
function sideBySide({ graph, place, schedule }: Replay, { end }: Pick<Times, "end">): (at: number) => number {
  const { tasks, edges } = graph.document;
  const free = new Map<number, number>();
  let known = 0;
  return (at) => {
    for (; known < at; known++) free.set(tasks.device[schedule.order[known]], end[known]);
    const task = schedule.order[at];
    let begins = free.get(tasks.device[task]) ?? 0;
    for (let edge = graph.inEdges.starts[task]; edge < graph.inEdges.starts[task + 1]; edge++) {
      const before = place[edges.task[graph.inEdges.values[edge]]];
      if (before < at) begins = Math.max(begins, end[before]);
    }
    return begins;
  };
}

/** Return each task's duration in nanoseconds, from the session's own run or else from its record. */
export function durations({ schedules: [{ order, clock }], records }: DeckDocument): Map<number, number> {
  const found = new Map<number, number>();
  for (const [task, { elapsed_ns }] of Object.entries(records)) if (elapsed_ns !== null) found.set(Number(task), elapsed_ns);
  clock?.duration.forEach((duration, place) => found.set(order[place], duration));
  return found;
}
