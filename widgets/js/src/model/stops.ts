/** Breakpoints and watchpoints, and the tasks before which they may stop a run. */

import type { DeckGraph } from "./graph.ts";
import { NEVER, type Replay } from "./replay.ts";

/** A breakpoint or watchpoint; widgets/deck/live_state.py writes it. */
export interface StopPoint {
  number: number;
  kind: "break" | "watch";
  /** Text as the user typed it. */
  text: string;
  enabled: boolean;
  hits: number;
  /** Tasks at which it may stop; empty if at any. */
  tasks: number[];
  /**
   * For a breakpoint on modules, the call of each task: the run stops before the first task of a call. Otherwise empty.
   */
  calls: number[];
}

/** Reason why a live session has stopped. */
export interface Stopped {
  text: string;
  /** Further facts; for a bad gradient, the path back to its origin. */
  lines: string[];
  task: number | null;
  number: number | null;
  why: "breakpoint" | "watchpoint" | "asked";
}

/** Tasks with a breakpoint; the value is true if one is enabled. */
export type Marks = ReadonlyMap<number, boolean>;

/** Return the marks. `breakpoints` are those set on tasks, which the kernel may not have confirmed yet. */
export function marksOf(stops: readonly StopPoint[], breakpoints: ReadonlySet<number>, replay: Replay): Marks {
  const marks = new Map<number, boolean>();
  for (const stop of stops) {
    if (stop.kind === "watch") continue;
    for (const task of stopsBefore(stop, replay)) marks.set(task, stop.enabled || marks.get(task) === true);
  }
  for (const task of breakpoints) if (!marks.has(task)) marks.set(task, true);
  return marks;
}

/** Return the tasks before which a stop may stop a run in this order. */
export function stopsBefore({ tasks, calls }: StopPoint, { place }: Replay): number[] {
  if (!calls.length) return tasks;
  const firsts = new Map<number, number>();
  tasks.forEach((task, at) => {
    const first = firsts.get(calls[at]);
    if (first === undefined || place[task] < place[first]) firsts.set(calls[at], task);
  });
  return [...firsts.values()];
}

/** Return the stops of a page without a kernel: one per breakpoint, numbered in the order in which they were set. */
export function ownStops(before: readonly StopPoint[], breakpoints: ReadonlySet<number>): StopPoint[] {
  const kept = before.filter(({ tasks }) => breakpoints.has(tasks[0]));
  let number = before.at(-1)?.number ?? 0;
  for (const task of breakpoints) {
    if (kept.some(({ tasks }) => tasks[0] === task)) continue;
    kept.push({ number: ++number, kind: "break", text: `#${task}`, enabled: true, hits: 0, tasks: [task], calls: [] });
  }
  return kept;
}

/** Return the task of a breakpoint set by task number; -1 for one set by place. */
export function taskOf({ kind, text, tasks }: StopPoint): number {
  return kind === "break" && tasks.length === 1 && /^(#|task\W*)?\d+$/.test(text) ? tasks[0] : -1;
}

/**
 * Return the position at which all tasks of the task's module call have run, including nested calls; with `out`, of the
 * enclosing call. In the outermost call and without module information this is one task ahead, and the end if there is
 * no enclosing call, as in engine/session/verbs.py.
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
