/** Breakpoints and watchpoints, and before which tasks they may stop a run. */

import type { DeckGraph } from "./graph.ts";
import { NEVER, type Replay } from "./replay.ts";

/** As widgets/deck/live_state.py tells it. */
export interface StopPoint {
  number: number;
  kind: "break" | "watch";
  /** How it was given. */
  text: string;
  enabled: boolean;
  hits: number;
  /** Those that it may stop at; empty: any. */
  tasks: number[];
  /** Of a breakpoint on modules the call of each of them: it stops before the first task of a call. Else empty. */
  calls: number[];
}

/** Why a live session has stopped. */
export interface Stopped {
  text: string;
  /** What else is known: of a bad gradient the way back to its origin. */
  lines: string[];
  task: number | null;
  number: number | null;
  why: "breakpoint" | "watchpoint" | "asked";
}

/** By task that has one whether it is enabled. */
export type Marks = ReadonlyMap<number, boolean>;

/** `breakpoints`: those of tasks, which the kernel may not have made stops of yet. */
export function marksOf(stops: readonly StopPoint[], breakpoints: ReadonlySet<number>, replay: Replay): Marks {
  const marks = new Map<number, boolean>();
  for (const stop of stops) {
    if (stop.kind === "watch") continue;
    for (const task of stopsBefore(stop, replay)) marks.set(task, stop.enabled || marks.get(task) === true);
  }
  for (const task of breakpoints) if (!marks.has(task)) marks.set(task, true);
  return marks;
}

/** The tasks before which it may stop, in this order of tasks. */
export function stopsBefore({ tasks, calls }: StopPoint, { place }: Replay): number[] {
  if (!calls.length) return tasks;
  const firsts = new Map<number, number>();
  tasks.forEach((task, at) => {
    const first = firsts.get(calls[at]);
    if (first === undefined || place[task] < place[first]) firsts.set(calls[at], task);
  });
  return [...firsts.values()];
}

/** The stops of a page without a kernel: one a breakpoint, numbered as they were set. */
export function ownStops(before: readonly StopPoint[], breakpoints: ReadonlySet<number>): StopPoint[] {
  const kept = before.filter(({ tasks }) => breakpoints.has(tasks[0]));
  let number = before.at(-1)?.number ?? 0;
  for (const task of breakpoints) {
    if (kept.some(({ tasks }) => tasks[0] === task)) continue;
    kept.push({ number: ++number, kind: "break", text: `#${task}`, enabled: true, hits: 0, tasks: [task], calls: [] });
  }
  return kept;
}

/** The task that a breakpoint was set at by its number; -1 for one that means a place. */
export function taskOf({ kind, text, tasks }: StopPoint): number {
  return kind === "break" && tasks.length === 1 && /^(#|task\W*)?\d+$/.test(text) ? tasks[0] : -1;
}

/**
 * The position at which all tasks of a task's module call have run, the calls in it included; `out`: of the call around
 * it. One task on in the outermost call and where no capture saw one, the end where there is none around it, as
 * engine/session/verbs.py has it.
 */
export function endOfCall({ graph, place, length, schedule }: Replay, t: number, out: boolean): number {
  const { tasks, calls } = graph.document;
  const call = tasks.call[schedule.order[t]] ?? -1;
  const parent = calls.parent[call] ?? -1;
  if (parent < 0) return out ? length : Math.min(t + 1, length);
  const around = out ? parent : call;
  let last = t;
  for (let task = 0; task < graph.count; task++) {
    if (place[task] > last && place[task] !== NEVER && isInside(graph, task, around)) last = place[task];
  }
  return last + 1;
}

function isInside({ document }: DeckGraph, task: number, around: number): boolean {
  let call = document.tasks.call[task];
  while (call >= 0 && call !== around) call = document.calls.parent[call];
  return call === around;
}
