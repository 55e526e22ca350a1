/** Activity of a device during a backward: its tasks, and the length of its ready queue at each position. */

import { placesOf } from "./queues.ts";
import type { Replay } from "./replay.ts";
import type { Times } from "./task_times.ts";

export interface Lane {
  /** Index and name of the device. */
  device: number;
  name: string;
  /** Places of its tasks. */
  places: Int32Array;
  /** Number of its ready tasks at each position, including the one that runs there, as `Run.queue_lengths` counts them. */
  queue: Int32Array;
  /** Maximum length of its queue. */
  longest: number;
  /** Peak of the device's memory while the task at each place ran, bytes; empty if unknown. */
  levels: readonly number[];
  /** Peak of the device's memory over all places. */
  peak: number;
  /** Share of the backward's time during which the device ran tasks; null if the times between tasks are unknown. */
  busy: number | null;
  /** Idle stretches longer than `LEAST_IDLE` of the backward, nanoseconds. */
  idle: { from: number; to: number }[];
}

/** Minimum duration of an idle stretch, as a share of the backward. */
export const LEAST_IDLE = 0.03;

export function lanesOf(replay: Replay, times: Times | null): Lane[] {
  return replay.graph.document.devices.flatMap((name, device) => {
    const { places, counts: queue } = placesOf(replay, device);
    if (!places.length) return [];
    const longest = queue.reduce((most, length) => Math.max(most, length), 0);
    const levels = replay.schedule.lane_levels?.find((each) => each.device === device)?.levels ?? [];
    const peak = levels.reduce((most, level) => Math.max(most, level), 0);
    const { busy, idle } = clocked(places, times);
    // Durations in a row without a recorded clock leave no gap, so that a single device would always be fully busy.
    const isKnown = replay.schedule.clock || places.length < replay.length;
    return [{ device, name, places, queue, longest, levels, peak, busy: isKnown ? busy : null, idle }];
  });
}

function clocked(places: Int32Array, times: Times | null): Pick<Lane, "busy" | "idle"> {
  if (!times) return { busy: null, idle: [] };
  let busy = 0;
  let last = 0;
  const idle: Lane["idle"] = [];
  const stands = (from: number, to: number) => {
    if (to - from > LEAST_IDLE * times.total) idle.push({ from, to });
  };
  for (const place of places) {
    stands(last, times.start[place]);
    busy += times.end[place] - times.start[place];
    last = Math.max(last, times.end[place]);
  }
  stands(last, times.total);
  return { busy: Math.min(1, busy / times.total), idle };
}
