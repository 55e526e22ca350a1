/** Where a task stands, in words. */

import { NEVER, type Replay } from "./replay.ts";
import { readyBefore } from "./waiting.ts";

/** Words with the numbers in between: odd ones stand out. */
export type Parts = string[];

/** `ran as task *58*`, `ready, *2* of 5 in the queue`, `*1 of 2* gradients here`: every second part is a number. */
export function when(replay: Replay, task: number, t: number): Parts {
  const place = replay.place[task];
  if (place === NEVER) return ["has no part in this backward"];
  const state = replay.state(task, t);
  if (state === "done") return ["ran as task ", (place + 1).toLocaleString("en-US")];
  if (state === "running") return ["runs as task ", (place + 1).toLocaleString("en-US")];
  if (state === "ready") {
    const ready = replay.queueLengths[t] - 1;
    const before = readyBefore(replay, task, t);
    return ["ready, ", (before + 1).toLocaleString("en-US"), ` of ${ready.toLocaleString("en-US")} in the queue`];
  }
  const waits = replay.graph.waits[task];
  return ["", `${replay.arrivedInputs(task, t)} of ${waits}`, waits === 1 ? " gradient here" : " gradients here"];
}
