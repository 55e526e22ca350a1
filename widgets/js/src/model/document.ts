/** What the page is given: one backward as columns. widgets/deck/page_data.py writes it and says what each field means. */

export const FORMAT = "tapescope.deck";
export const VERSION = 2;

/** -1 in a column of indices. */
export const NONE = -1;

export interface DeckDocument {
  format: string;
  version: number;
  /** What was run: the model's class, or a file's name. */
  title: string;
  engine: "direct" | "native";
  /** Whether all devices share one ready queue, or each has its own; missing: one. */
  queues?: "one" | "per device";
  /** Where tasks run: "cpu", "cuda:0". */
  devices: string[];
  /** What was recorded, in this order. */
  phases: Phase[];
  /** Whether tasks keep their saved tensors when they have run: `retain_graph`, `create_graph`, a tape. */
  keeps_graph: boolean;
  /** Whether the forward's inputs were kept, without which derivatives can't be checked. */
  keeps_inputs?: boolean;
  /** Interned strings; other columns refer to them by index. */
  texts: string[];
  /** What is known of a gradient before it exists. `shape` is null for nested tensors. */
  metas: { shape: number[] | null; dtype: string; device: string; bytes: number | null }[];
  /** Lists of metas, by index: what a task takes. */
  forms: number[][];
  tasks: {
    /** Texts: "AddmmBackward0". */
    name: number[];
    /** The node's kind, a text: "cpp", "function", "accumulate_grad", ... */
    kind: number[];
    /** Call, or NONE. */
    call: number[];
    /** Line of the forward, or NONE. */
    line: number[];
    /** Text: the forward operation, or NONE. */
    operation: number[];
    /** Text: the parameter's name, or NONE. */
    parameter: number[];
    /** Where it runs: an index of `devices`. */
    device: number[];
    /** Form. */
    takes: number[];
  };
  /** Sorted by task and output. */
  edges: { task: number[]; output: number[]; next: number[]; input: number[] };
  /** [task, input] each. */
  roots: [number, number][];
  /** Module calls, parents first. */
  calls: { path: number[]; class: number[]; parent: number[]; index: number[] };
  /** Source lines: `short` is "model.py:120", `code` starts with line number `first`. */
  lines: { file: string; short: string; line: number; function: string; first: number; code: string[] }[];
  /** Saved tensors by task. `storage`: equal numbers share bytes. */
  saved: {
    task: number[];
    slot: number[];
    storage: number[];
    bytes: number[];
    meta: number[];
    parameter: number[];
    held: number[];
    /** The operations that recompute a dropped tensor; NONE for a kept one. Missing without dropped tensors. */
    made_by?: number[];
  };
  /** Which products could run as one; null or missing where that was not looked for. */
  groups?: Groups | null;
  /** The chosen policy first; the others are simulated. */
  schedules: Schedule[];
  /** How many tasks of the first schedule's order have run. */
  position: number;
  /** Counts what a live session has told since it began; 0 if missing. */
  revision?: number;
  /** What has been recorded of tasks, by task id. */
  records: Record<string, TaskRecord>;
  /** By task id, the number of storages recomputed and the nanoseconds. Missing if not measured. */
  replayed?: Record<string, [number, number]>;
  /** Of a session that went back, and of checks of tasks, by task id. */
  branches?: Branch[];
  checks?: Record<string, Check>;
}

/** A part of a training step; `elapsed_ns` is null where that is not known. */
export interface Phase {
  name: "forward" | "backward" | "optimizer";
  elapsed_ns: number | null;
}

/** When tasks ran, by place: nanoseconds since the first one's start, of as many places as that is known of. */
export interface Clock {
  start: number[];
  duration: number[];
  /** When each was ready. Missing: when the last task before it in the graph had ended. */
  ready?: number[];
  /** Why a device stood still, for stretches in which another order would have had it work. */
  still?: { device: number; from: number; to: number; text: string }[];
}

/** Of the backward, of its forward, or what really ran as one. */
export type Direction = "backward" | "forward" | "ran";

/** See widgets/deck/groups_data.py. */
export interface Groups {
  /** `launches`: before and after; `copied`: bytes. */
  found: {
    direction: Direction;
    title: string;
    product: string;
    where: string;
    launches: [number, number];
    copied: number;
    tasks: number[];
  }[];
  refused: { direction: Direction; title: string; why: string; tasks: number[] }[];
  /** By direction what it comes to, in sentences. */
  said: Partial<Record<Direction, string>>;
}

/** A way in which a session went. All but the current one have a schedule of their own, called `branch 2`. */
export interface Branch {
  number: number;
  /** The one that it parted from, and after how many tasks; null for the first of all. */
  parent: number | null;
  forked_at: number;
  /** How many of its tasks have run. */
  ran: number;
  current: boolean;
  /** `branch 2, 40 tasks under heap, forked from branch 1 after 12 tasks, 1 edit`. */
  text: string;
}

/** Whether a task's backward is that of its forward; `ok` is null where that could not be told. */
export interface Check {
  ok: boolean | null;
  /** `right, but it keeps x as ctx.x`; where it is missing, `ok` says it all. */
  verdict?: string;
  lines: string[];
}

export interface Schedule {
  policy: string;
  /** The rule in words. */
  title: string;
  /** Task ids. Tasks that a backward with inputs= leaves out are missing. */
  order: number[];
  /** How the ready queue labels a task: its place of creation (leaves are "leaf"), of arrival, or one text a task. */
  keys: "created" | "arrival" | string[];
  /** Tasks that were chosen by hand. */
  by_hand: number[];
  /** Tasks that ran in one step, each time with the one that was picked first; missing: each ran alone. */
  batches?: number[][];
  /** null or missing: not recorded. */
  clock?: Clock | null;
  /** null: not known (yet); `memory_note` says why. */
  memory: Memory | null;
  memory_note: string;
  /** How long it would take the kernel to predict it, seconds; missing: it can't be asked to. */
  predict_s?: number;
  /** By storage that a task makes again what its plan says of that; missing: none is known. See widgets/deck/recompute_data.py. */
  replays?: {
    task: number[];
    storage: number[];
    count: number[];
    bytes: number[];
    ns: number[];
    kept: number[];
    kept_bytes: number[];
  };
  /** Of several devices, by place the highest level of memory while that task ran, bytes; missing: one's is known. */
  lane_levels?: { device: number; levels: number[] }[];
  /** The level of the backward without the plan, and with it, as predicted. */
  curves?: Curve[];
}

/** `levels[i]` is the level before event i; the task at place k has those from `starts[k]` to `starts[k + 1]`. */
export interface Curve {
  name: "plain" | "planned";
  starts: number[];
  levels: number[];
}

/** Births and deaths of storages in order, see engine/memory/timeline.py. */
export interface Memory {
  device: string;
  basis: "measured" | "calibrated" | "dry run";
  estimates: string[];
  before: number;
  nbytes: number[];
  /** `n`: storage n is born; `~n`: it dies. */
  events: number[];
  /** The index of the first event of each place, and the end of the last. */
  starts: number[];
  /** By event the place of the task that did it, where devices' tasks overlap. */
  event_places?: number[];
  born_as: number[];
  /**
   * Event before which it happened, place of its task, storage, category from then on; event, ... Sorted by event and
   * place: several tasks may run between two events.
   */
  changes: number[];
  /** The sentence at the peak, without its bytes: "48 weight gradients wait for TBackward0". */
  peak: string;
  /** When the forward's events happened, nanoseconds since its first; empty where that is not known. */
  forward_ns: number[];
  /** Of a whole training step: it begins with what is there (`before`), and after the last task comes the rest. */
  step?: boolean;
  /** Those with most bytes × time, see widgets/deck/page_data.py. */
  rows: LifetimeRow[];
}

/** Storages that equal layers made alike. */
export interface LifetimeRow {
  name: string;
  /** "blocks.*.attn" */
  module: string;
  count: number;
  /** The bytes of each. */
  nbytes: number;
  /** All, in order of birth; of more than four the first born and the last freed. */
  storages: number[];
  made_by: string;
  kept_by: string;
  freed_by: string;
}

export interface TaskRecord {
  inputs: (Gradient | null)[];
  /** Empty as long as the task has not run. */
  outputs: (Gradient | null)[];
  elapsed_ns: number | null;
  /** Whether what came was changed by hand. */
  edited?: boolean;
  /** Those that ran, in words: "tensor hook double_it". Missing: none was seen. */
  hooks?: string[];
}

export interface Gradient {
  meta: number;
  /** Over the finite elements; null where there are none. All are missing where they were not computed: see `why`. */
  min?: number | null;
  max?: number | null;
  mean?: number | null;
  norm?: number | null;
  nan?: number;
  inf?: number;
  zero?: number;
  /** The first bin's number and the counts from there on, see engine/recording/statistics.py, EDGES. */
  first_bin?: number;
  bins?: number[];
  why?: string;
}

/** The categories of memory as they are stacked, from below: what stays through a whole step carries the rest. */
export const FROM_BELOW = [9, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8] as const;

/** The categories of memory by their number in engine/memory/timeline.py. */
export const CATEGORIES = [
  { key: "saved", title: "saved activations", name: "activations" },
  { key: "buffer", title: "input buffers", name: "input buffers" },
  { key: "pgrad", title: "parameter gradients", name: "gradients" },
  { key: "other", title: "forward values", name: "forward values" },
  { key: "held", title: "held gradients", name: "held" },
  { key: "work", title: "workspace", name: "workspace" },
  { key: "unknown", title: "not attributed", name: "not attributed" },
  { key: "listed", title: "gradients in lists", name: "in lists" },
  { key: "consumed", title: "consumed buffers", name: "consumed" },
  { key: "param", title: "parameters", name: "parameters" },
  { key: "state", title: "optimizer state", name: "optimizer state" },
] as const;
