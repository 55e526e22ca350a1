/** Saved tensors: those of each task, the other tasks that share their bytes, and when they are freed. */

import { type DeckDocument, NONE } from "./document.ts";
import { NEVER, type Replay } from "./replay.ts";
import { count, milliseconds, nth } from "../format.ts";

interface Index {
  /** Rows of `document.saved` for each task. */
  ofTask: Map<number, number[]>;
  /** Tasks that save each storage. */
  keepers: Map<number, number[]>;
}

const known = new WeakMap<DeckDocument, Index>();

function indexOf(document: DeckDocument): Index {
  let index = known.get(document);
  if (index) return index;
  index = { ofTask: new Map(), keepers: new Map() };
  const { task: tasks, storage } = document.saved;
  tasks.forEach((task, row) => {
    push(index.ofTask, task, row);
    const keepers = storage[row] === NONE ? undefined : index.keepers.get(storage[row]);
    if (storage[row] !== NONE && keepers?.at(-1) !== task) push(index.keepers, storage[row], task);
  });
  known.set(document, index);
  return index;
}

function push(map: Map<number, number[]>, key: number, value: number): void {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}

export interface Saved {
  slot: string;
  storage: number;
  /** Index into `metas`; NONE if shape and dtype are unknown. */
  meta: number;
  bytes: number;
  /** Name of the parameter, if it is one; else "". */
  parameter: string;
  /** True if user code also references it, so that it outlives the backward. */
  held: boolean;
  /** Operation that recomputes it, if it was dropped; else "". */
  madeBy: string;
  /** Place of the first task that saves it, which triggers the recomputation. */
  first: number;
  /** Earlier slot of this task with the same bytes; "" if there is none. */
  sameAs: string;
  /** Other tasks that save the same bytes. */
  others: number[];
  /** Place of the last task that saves it; NEVER if one of them does not run. */
  last: number;
}

/** Return a task's saved tensors under a schedule. */
export function savedBy(replay: Replay, task: number): Saved[] {
  const { document } = replay.graph;
  const { saved } = document;
  const { ofTask, keepers } = indexOf(document);
  const firsts = new Map<number, string>();
  return (ofTask.get(task) ?? []).map((row) => {
    const all = keepers.get(saved.storage[row]) ?? [task];
    const slot = replay.graph.text(saved.slot[row]);
    const sameAs = firsts.get(saved.storage[row]) ?? "";
    if (saved.storage[row] !== NONE && !sameAs) firsts.set(saved.storage[row], slot);
    return {
      slot,
      storage: saved.storage[row],
      sameAs,
      meta: saved.meta[row],
      bytes: saved.bytes[row],
      parameter: replay.graph.text(saved.parameter[row]),
      held: saved.held[row] === 1,
      madeBy: saved.made_by ? replay.graph.text(saved.made_by[row]) : "",
      first: all.reduce((first, keeper) => Math.min(first, replay.place[keeper]), NEVER),
      others: all.filter((other) => other !== task),
      last: all.reduce((last, keeper) => Math.max(last, replay.place[keeper]), 0),
    };
  });
}

/** Return the bytes that count as saved: each storage once, without parameters and tensors held by user code. */
export function keptBytes(all: readonly Saved[]): number {
  const counted = all.filter((each) => !each.parameter && !each.held && !each.sameAs && !each.madeBy);
  return counted.reduce((sum, each) => sum + each.bytes, 0);
}

/**
 * Return a sentence that says when the bytes are freed and which other tasks save them. `t`: number of tasks that have
 * run.
 */
export function fate(replay: Replay, saved: Saved, t: number): string {
  if (saved.parameter) return `parameter ${saved.parameter}, not counted`;
  if (saved.held) return "held by the caller, not counted";
  if (saved.sameAs) return `shares its bytes with ${saved.sameAs}`;
  if (saved.madeBy && saved.first >= t) {
    const when = saved.first === NEVER ? "if it runs" : `as the ${nth(saved.first + 1)} runs${planned(replay, saved)}`;
    return `dropped, recomputed by ${saved.madeBy} ${when}${sharers(replay, saved, "also saved")}`;
  }
  if (replay.graph.document.keeps_graph) return `kept: the graph is retained${sharers(replay, saved, "also saved")}`;
  if (saved.last === NEVER) return "kept to the end: a task that saves it does not run";
  const freed = isFreed(replay, saved, t);
  const when = `${freed ? "freed by" : "freed after"} the ${nth(saved.last + 1)}`;
  return when + sharers(replay, saved, freed ? "was also saved" : "also saved");
}

/** Return the predicted recomputation, `, in 0.65 ms as planned, with 2 intermediates`; "" without a plan. */
function planned({ schedule: { replays } }: Replay, { storage }: Saved): string {
  const row = replays?.storage.indexOf(storage) ?? NONE;
  if (!replays || row === NONE) return "";
  const others = replays.count[row] - 1;
  return `, in ${milliseconds(replays.ns[row])} as planned${others ? `, with ${count(others, "intermediate")}` : ""}`;
}

/** Return `, also saved by Relu, 3rd, and 2 more`, or "". */
function sharers(replay: Replay, { others }: Saved, kept: string): string {
  if (!others.length) return "";
  const [first, ...more] = others;
  return `, ${kept} by ${replay.named(first)}${more.length ? `, and ${more.length} more` : ""}`;
}

/** Return whether the bytes are freed after `t` tasks. */
export function isFreed(replay: Replay, saved: Saved, t: number): boolean {
  return !replay.graph.document.keeps_graph && saved.last < t;
}
