/** Where a task stands, in words. */

import { NEVER, type Replay } from "./replay.ts";
import { readyBefore } from "./waiting.ts";
import { grouped } from "../text.ts";

/** Words with the numbers in between: odd ones stand out. */
export type Parts = string[];

/** What has not run: beyond the session's front, or in the order of a policy that it does not have. */
export type Unreal = "planned" | "simulated" | "failed";

/**
 * `ran as task *58*`, `ready, *2* of 5 in the queue`, `*1 of 2* gradients here`: every second part is a number.
 * `ran`: how many tasks have run; those after it, up to the position, are what `unreal` says.
 */
export function when(replay: Replay, task: number, t: number, ran = t, unreal: Unreal | null = ran < t ? "planned" : null): Parts {
  const place = replay.place[task];
  if (place === NEVER) return ["has no part in this backward"];
  const state = replay.state(task, t);
  if (state === "done") return [place < ran ? "ran as task " : `${unreal ?? "planned"} as task `, grouped(place + 1)];
  if (state === "running") return [unreal ? `${unreal} as task ` : "runs as task ", grouped(place + 1)];
  if (state === "ready") {
    const ready = replay.queueLengths[t] - 1;
    const before = readyBefore(replay, task, t);
    return ["ready, ", grouped(before + 1), ` of ${grouped(ready)} in the queue`];
  }
  const waits = replay.graph.waits[task];
  return ["", `${replay.arrivedInputs(task, t)} of ${waits}`, waits === 1 ? " gradient here" : " gradients here"];
}
