/** Descriptions of when a task runs. */

import { NEVER, type Replay } from "./replay.ts";
import { grouped, nth } from "../format.ts";

/** Words and numbers, alternating; the numbers (odd indices) are emphasized. */
export type Parts = string[];

/** Reason why a task has not run: beyond the session's front, in the order of another policy, or after a failure. */
export type Unreal = "planned" | "simulated" | "failed";

const WILL: Record<Unreal, string> = { planned: "will run", simulated: "would run", failed: "failed" };

/**
 * Describe when a task runs: `ran *53rd* of 244`, `ready, will run *56th* of 244`, `will run *60th* of 244, *1 of 2*
 * gradients arrived`. Every second part is a number. `ran` is the number of tasks that have run; `unreal` describes the
 * tasks between `ran` and the position.
 */
export function when(replay: Replay, task: number, t: number, ran = t, unreal: Unreal | null = ran < t ? "planned" : null): Parts {
  const place = replay.place[task];
  if (place === NEVER) return ["not part of this backward"];
  const state = replay.state(task, t);
  const will = WILL[unreal && unreal !== "planned" ? "simulated" : "planned"];
  const [at, of] = [nth(place + 1), ` of ${grouped(replay.length)}`];
  if (state === "done") return [place < ran ? "ran " : `${WILL[unreal ?? "planned"]} `, at, of];
  if (state === "running") return [unreal ? `${WILL[unreal]} ` : "runs ", at, of];
  if (state === "ready") return [`ready, ${will} `, at, of];
  const waits = replay.graph.waits[task];
  const here = `${replay.arrivedInputs(task, t)} of ${waits}`;
  return [`${will} `, at, `${of}, `, here, waits === 1 ? " gradient arrived" : " gradients arrived"];
}
