/** Recomputation by task: the tasks whose saved tensors were dropped, and the tasks that recompute them. */

import { NONE } from "./document.ts";
import { NEVER, type Replay } from "./replay.ts";
import { count as counted, milliseconds, size } from "../format.ts";

/** The signs of a task in the graph, in the order of the legend. */
export const SIGNS = ["dropped", "recomputed", "kept"] as const;
export type Sign = (typeof SIGNS)[number];

/** The recomputation in front of a task. */
export interface Recomputed {
  /** Number of storages, including intermediate ones if the plan is known. */
  count: number;
  bytes: number;
  /** Planned time; null if the plan is not known. */
  ns: number | null;
  /** Number of newly kept storages that it reads. */
  kept: number;
  keptBytes: number;
}

export interface Mark {
  /** Number and bytes of the saved storages that were dropped. */
  count: number;
  bytes: number;
  /** null if earlier tasks recompute all of them. */
  recomputed: Recomputed | null;
}

export type Marks = ReadonlyMap<number, Mark>;

const known = new WeakMap<Replay, Marks>();
const NOTHING: Marks = new Map();

/** Return the marks by task; empty if the forward ran without a plan. */
export function recomputeMarks(replay: Replay): Marks {
  if (!replay.graph.document.saved.made_by) return NOTHING;
  let found = known.get(replay);
  if (!found) known.set(replay, (found = marksOf(replay)));
  return found;
}

function marksOf(replay: Replay): Marks {
  const { saved } = replay.graph.document;
  const madeBy = saved.made_by ?? [];
  const found = new Map<number, Mark>();
  const seen = new Set<string>();
  const firsts = new Map<number, number>();
  const rows = [...saved.task.keys()].filter((row) => madeBy[row] !== NONE);
  for (const row of rows) {
    const [task, storage] = [saved.task[row], saved.storage[row]];
    if (seen.has(`${task} ${storage}`)) continue;
    seen.add(`${task} ${storage}`);
    const mark = found.get(task) ?? { count: 0, bytes: 0, recomputed: null };
    found.set(task, { ...mark, count: mark.count + 1, bytes: mark.bytes + saved.bytes[row] });
    const first = firsts.get(storage);
    if (first === undefined || replay.place[task] < replay.place[first]) firsts.set(storage, task);
  }
  const add = (task: number, more: Recomputed) => {
    const mark = found.get(task);
    if (!mark || replay.place[task] === NEVER) return;
    const { recomputed } = mark;
    mark.recomputed = recomputed ? sum(recomputed, more) : more;
  };
  const { replays } = replay.schedule;
  // Without a plan the first task that saves a storage recomputes it; its inputs and its time are unknown.
  if (replays) {
    replays.task.forEach((task, row) => add(task, {
      count: replays.count[row], bytes: replays.bytes[row], ns: replays.ns[row],
      kept: replays.kept[row], keptBytes: replays.kept_bytes[row],
    }));
  } else {
    const bytes = new Map(rows.map((row) => [saved.storage[row], saved.bytes[row]]));
    for (const [storage, task] of firsts) {
      add(task, { count: 1, bytes: bytes.get(storage) ?? 0, ns: null, kept: 0, keptBytes: 0 });
    }
  }
  return found;
}

/** Return the signs of some tasks. A task that recomputes what it dropped has no sign for dropping. */
export function signsOf(marks: Iterable<Mark>): Sign[] {
  const found = new Set<Sign>();
  for (const { recomputed } of marks) {
    found.add(recomputed ? "recomputed" : "dropped");
    if (recomputed?.kept) found.add("kept");
  }
  return SIGNS.filter((sign) => found.has(sign));
}

/** Add up the marks of some tasks, such as those in a closed box. */
function together(marks: readonly Mark[]): Mark {
  return marks.reduce((one, other) => ({
    count: one.count + other.count,
    bytes: one.bytes + other.bytes,
    recomputed:
      one.recomputed && other.recomputed
        ? sum(one.recomputed, other.recomputed)
        : (one.recomputed ?? other.recomputed),
  }));
}

function sum(one: Recomputed, other: Recomputed): Recomputed {
  return {
    count: one.count + other.count,
    bytes: one.bytes + other.bytes,
    ns: one.ns === null || other.ns === null ? null : one.ns + other.ns,
    kept: one.kept + other.kept,
    keptBytes: one.keptBytes + other.keptBytes,
  };
}

/** Return `recomputes 2 first, 0.65 ms`, or `recomputed 2 in 0.71 ms` once it has; "" if it recomputes nothing. */
export function replays(replay: Replay, task: number): string {
  const ran = replay.graph.document.replayed?.[task];
  if (ran) return `recomputed ${ran[0]} in ${milliseconds(ran[1])}`;
  const recomputed = recomputeMarks(replay).get(task)?.recomputed;
  if (!recomputed) return "";
  return `recomputes ${recomputed.count} first${recomputed.ns === null ? "" : `, ${milliseconds(recomputed.ns)}`}`;
}

/** Return measured and planned recompute time, `0.71 ms, planned 0.65 ms`; "" if neither is known. */
export function replayTimes(replay: Replay, task: number): string {
  const ran = replay.graph.document.replayed?.[task];
  const ns = recomputeMarks(replay).get(task)?.recomputed?.ns ?? null;
  const planned = ns === null ? "" : `planned ${milliseconds(ns)}`;
  return [ran ? milliseconds(ran[1]) : "", planned].filter(Boolean).join(", ");
}

/** Return the tooltip lines for the marks of one or several tasks. */
export function markSays(marks: readonly Mark[]): string[] {
  if (!marks.length) return [];
  const { count, bytes, recomputed } = together(marks);
  const said = [`drops ${tensors("saved tensor", count, bytes)}`];
  if (recomputed) {
    const planned = recomputed.ns === null ? "" : `, in ${milliseconds(recomputed.ns)} as planned`;
    said.push(`recomputes ${tensors("tensor", recomputed.count, recomputed.bytes)} first${planned}`);
  }
  if (recomputed?.kept) said.push(`newly keeps ${tensors("tensor", recomputed.kept, recomputed.keptBytes)} for that`);
  return said;
}

/** Return `2 tensors, 1.0 MiB`. */
function tensors(what: string, amount: number, bytes: number): string {
  return `${counted(amount, what)}, ${size(bytes)}`;
}
