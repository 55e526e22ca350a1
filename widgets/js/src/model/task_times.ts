/** When tasks ran, for the clock axis: as recorded, or one after the other with what each of them took. */

import type { Clock, DeckDocument } from "./document.ts";
import type { Replay } from "./replay.ts";

export interface Times {
  /** By place, nanoseconds since the start of the backward; side by side, a later place may start earlier. */
  start: Float64Array;
  end: Float64Array;
  /** When the last one ended. */
  total: number;
  /** Whether all of it is known; else tasks are reckoned with of which no time is. */
  isWhole: boolean;
  still: NonNullable<Clock["still"]>;
}

/** The times of a schedule; tasks that have not run are taken to last as long as others on average. null: none is known. */
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

/** When the task of a place can begin at the earliest: its device is free then, and what it waits for has ended. */
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

/** By task the nanoseconds that it took: in the session's own run, or as its record says. */
function durations({ schedules: [{ order, clock }], records }: DeckDocument): Map<number, number> {
  const found = new Map<number, number>();
  for (const [task, { elapsed_ns }] of Object.entries(records)) if (elapsed_ns !== null) found.set(Number(task), elapsed_ns);
  clock?.duration.forEach((duration, place) => found.set(order[place], duration));
  return found;
}
