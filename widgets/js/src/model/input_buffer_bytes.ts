/** Bytes in the input buffers of ready tasks, at each position of a schedule. */

import type { Replay } from "./replay.ts";

const known = new WeakMap<Replay, Float64Array>();

/** Return the bytes in the input buffers of the ready tasks at each position, without the running task. */
export function waitingBytes(replay: Replay): Float64Array {
  let bytes = known.get(replay);
  if (bytes) return bytes;
  bytes = new Float64Array(replay.length + 1);
  replay.schedule.order.forEach((task, place) => {
    bytes[replay.readyAt[task]] += replay.graph.bufferBytes[task];
    bytes[place] -= replay.graph.bufferBytes[task];
  });
  for (let t = 1; t < bytes.length; t++) bytes[t] += bytes[t - 1];
  known.set(replay, bytes);
  return bytes;
}

/** Return how many of the ready tasks run before the given ready task. */
export function readyBefore(replay: Replay, task: number, t: number): number {
  let count = 0;
  for (let place = t + 1; place < replay.place[task]; place++) {
    if (replay.readyAt[replay.schedule.order[place]] <= t) count++;
  }
  return count;
}
