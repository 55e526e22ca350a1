/** What recomputation means to the tasks of a schedule: which let go of what they saved, and which make it again first. */

import { NONE } from "./document.ts";
import { NEVER, type Replay } from "./replay.ts";
import { count as counted, milliseconds, size } from "../format.ts";

/** The signs of a task in the graph, in the order of the legend. */
export const SIGNS = ["let go", "again", "kept"] as const;
export type Sign = (typeof SIGNS)[number];

/** What a task makes again before it runs. */
export interface Again {
  /** Storages, those on the way included where the plan is known. */
  count: number;
  bytes: number;
  /** As planned; null: the plan is not known. */
  ns: number | null;
  /** What is kept for this alone. */
  kept: number;
  keptBytes: number;
}

export interface Mark {
  /** How many storages it saved were let go of, and their bytes. */
  count: number;
  bytes: number;
  /** null: earlier tasks make all of it again. */
  again: Again | null;
}

export type Marks = ReadonlyMap<number, Mark>;

const known = new WeakMap<Replay, Marks>();
const NOTHING: Marks = new Map();

/** By task; empty where the forward was not recomputed. */
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
    const mark = found.get(task) ?? { count: 0, bytes: 0, again: null };
    found.set(task, { ...mark, count: mark.count + 1, bytes: mark.bytes + saved.bytes[row] });
    const first = firsts.get(storage);
    if (first === undefined || replay.place[task] < replay.place[first]) firsts.set(storage, task);
  }
  const add = (task: number, more: Again) => {
    const mark = found.get(task);
    if (!mark || replay.place[task] === NEVER) return;
    const { again } = mark;
    mark.again = again ? sum(again, more) : more;
  };
  const { replays } = replay.schedule;
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

/** Those of some tasks: of one that makes again what it let go of, the latter goes without saying. */
export function signsOf(marks: Iterable<Mark>): Sign[] {
  const found = new Set<Sign>();
  for (const { again } of marks) {
    found.add(again ? "again" : "let go");
    if (again?.kept) found.add("kept");
  }
  return SIGNS.filter((sign) => found.has(sign));
}

/** What is said of some tasks, such as those in a closed box. */
function together(marks: readonly Mark[]): Mark {
  return marks.reduce((one, other) => ({
    count: one.count + other.count,
    bytes: one.bytes + other.bytes,
    again: one.again && other.again ? sum(one.again, other.again) : (one.again ?? other.again),
  }));
}

function sum(one: Again, other: Again): Again {
  return {
    count: one.count + other.count,
    bytes: one.bytes + other.bytes,
    ns: one.ns === null || other.ns === null ? null : one.ns + other.ns,
    kept: one.kept + other.kept,
    keptBytes: one.keptBytes + other.keptBytes,
  };
}

/** `replays 2 first, 0.65 ms`; when it did, `replayed 2 in 0.71 ms`; "" for a task that makes nothing again. */
export function replays(replay: Replay, task: number): string {
  const ran = replay.graph.document.replayed?.[task];
  if (ran) return `replayed ${ran[0]} in ${milliseconds(ran[1])}`;
  const again = recomputeMarks(replay).get(task)?.again;
  if (!again) return "";
  return `replays ${again.count} first${again.ns === null ? "" : `, ${milliseconds(again.ns)}`}`;
}

/** What replays were to take, and took: `0.71 ms, planned 0.65 ms`; "" where neither is known. */
export function replayTimes(replay: Replay, task: number): string {
  const ran = replay.graph.document.replayed?.[task];
  const ns = recomputeMarks(replay).get(task)?.again?.ns ?? null;
  const planned = ns === null ? "" : `planned ${milliseconds(ns)}`;
  return [ran ? milliseconds(ran[1]) : "", planned].filter(Boolean).join(", ");
}

/** What a tooltip says of the marks of a task, or of several, a line each. */
export function markSays(marks: readonly Mark[]): string[] {
  if (!marks.length) return [];
  const { count, bytes, again } = together(marks);
  const said = [`lets go of ${tensors("saved tensor", count, bytes)}`];
  if (again) {
    const planned = again.ns === null ? "" : `, ${milliseconds(again.ns)} planned`;
    said.push(`makes ${tensors("tensor", again.count, again.bytes)} again first${planned}`);
  }
  if (again?.kept) said.push(`newly keeps ${tensors("tensor", again.kept, again.keptBytes)} for that`);
  return said;
}

/** `2 tensors, 1.0 MiB`. */
function tensors(what: string, amount: number, bytes: number): string {
  return `${counted(amount, what)}, ${size(bytes)}`;
}
