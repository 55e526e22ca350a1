/** The deck's document: one backward as columns. widgets/deck/page_data.py writes it and describes each field. */

export const FORMAT = "tapescope.deck";
export const VERSION = 2;

/** Placeholder for a missing index in a column of indices. */
export const NONE = -1;

export interface DeckDocument {
  format: string;
  version: number;
  /** Name of the model's class or of the file that was run. */
  title: string;
  /** Sentence about the whole graph, such as that parameters are missing in it. */
  note?: string;
  engine: "direct" | "native";
  /** One ready queue for all devices ("one", the default), or one queue per device. */
  queues?: "one" | "per device";
  /** Names of the devices that run tasks: "cpu", "cuda:0". */
  devices: string[];
  /** Recorded phases, in order. */
  phases: Phase[];
  /** True if tasks keep their saved tensors after running (`retain_graph`, `create_graph`, a recording). */
  keeps_graph: boolean;
  /** True if the forward's inputs were kept; checking derivatives requires them. */
  keeps_inputs?: boolean;
  /** Interned strings; other columns contain indices into this list. */
  texts: string[];
  /** Gradient metadata known before the backward runs. `shape` is null for nested tensors. */
  metas: { shape: number[] | null; dtype: string; device: string; bytes: number | null }[];
  /** Lists of indices into `metas`: the inputs of a task. */
  forms: number[][];
  tasks: {
    /** Text: node name, such as "AddmmBackward0". */
    name: number[];
    /** Text: node kind ("cpp", "function", "accumulate_grad", ...). */
    kind: number[];
    /** Index of the module call, or NONE. */
    call: number[];
    /** Index of the forward's source line, or NONE. */
    line: number[];
    /** Text: forward operation, or NONE. */
    operation: number[];
    /** Text: parameter name, or NONE. */
    parameter: number[];
    /** Index into `devices`. */
    device: number[];
    /** Index into `forms`. */
    takes: number[];
    /** Nanoseconds from the forward's start to the node's creation, or NONE; missing if unknown for all tasks. */
    created?: number[];
  };
  /** Edges, sorted by task and output. */
  edges: { task: number[]; output: number[]; next: number[]; input: number[] };
  /** Pairs [task, input]. */
  roots: [number, number][];
  /** Module calls; a parent precedes its children. */
  calls: { path: number[]; class: number[]; parent: number[]; index: number[] };
  /** Source lines. `short` is "model.py:120"; `code` starts at line number `first`. */
  lines: { file: string; short: string; line: number; function: string; first: number; code: string[] }[];
  /** Saved tensors, by task. Rows with equal `storage` share their bytes. */
  saved: {
    task: number[];
    slot: number[];
    storage: number[];
    bytes: number[];
    meta: number[];
    parameter: number[];
    held: number[];
    /**
     * Text: operation that recomputes a dropped tensor; NONE if the tensor is kept. Missing if no tensor was dropped.
     */
    made_by?: number[];
  };
  /** Products that could run as one batched product; null or missing before the kernel has searched for them. */
  groups?: Groups | null;
  /** Schedules, the session's own policy first; the others are simulated. */
  schedules: Schedule[];
  /** True if the first schedule is a simulation like the others, so that no task has run. */
  is_simulated?: boolean;
  /** Number of tasks of the first schedule that have run. */
  position: number;
  /** Number of updates sent by the live session so far; 0 if missing. */
  revision?: number;
  /** Recorded values, by task id. */
  records: Record<string, TaskRecord>;
  /** Number of storages each task recomputed, and the nanoseconds, by task id. Missing if not measured. */
  replayed?: Record<string, [number, number]>;
  /** Branches of a session that was rewound, and results of checked tasks by task id. */
  branches?: Branch[];
  checks?: Record<string, Check>;
}

/** A phase of a training step; `elapsed_ns` is null if unknown. */
export interface Phase {
  name: "forward" | "backward" | "optimizer";
  elapsed_ns: number | null;
}

/**
 * Start and duration of the tasks, by place, in nanoseconds since the first task's start. May cover only the first
 * places.
 */
export interface Clock {
  start: number[];
  duration: number[];
  /** Time at which each task became ready. If missing, the end of its last predecessor is used. */
  ready?: number[];
  /** Idle stretches of a device that another order would have avoided, with the reason. */
  still?: { device: number; from: number; to: number; text: string }[];
}

/** Products of the backward, of its forward, or products that were actually batched. */
export type Direction = "backward" | "forward" | "ran";

/** Groups of products; see widgets/deck/groups_data.py. */
export interface Groups {
  /** `launches`: before and after batching; `copied`: bytes. */
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
  /** Summary of each direction, in sentences. */
  said: Partial<Record<Direction, string>>;
}

/** A branch of the session's history. All except the current one have a schedule named `branch 2` and so on. */
export interface Branch {
  number: number;
  /** Number of the branch it was forked from; null for the first. `forked_at` counts the tasks run before the fork. */
  parent: number | null;
  forked_at: number;
  /** Number of its tasks that have run. */
  ran: number;
  current: boolean;
  /** Description, such as `branch 2, 40 tasks under heap, forked from branch 1 after 12 tasks, 1 edit`. */
  text: string;
}

/** Result of comparing a task's backward with its forward; `ok` is null if it could not be decided. */
export interface Check {
  ok: boolean | null;
  /** True if the gradients are right but the lines contain warnings; missing without them. */
  warns?: boolean;
  lines: string[];
}

export interface Schedule {
  policy: string;
  /** Description of the policy's rule. */
  title: string;
  /** Task ids. Tasks that `backward(inputs=...)` excludes are missing. */
  order: number[];
  /**
   * Labels of tasks in the ready queue: the order of creation (leaves are "leaf"), the order of arrival, or one text
   * per task.
   */
  keys: "created" | "arrival" | string[];
  /** Tasks that the user chose by hand. */
  by_hand: number[];
  /** Tasks that ran in the same step, the picked task first; missing if each task ran alone. */
  batches?: number[][];
  /** Recorded times; null or missing if not recorded. */
  clock?: Clock | null;
  /** Memory timeline; null if unknown (`memory_note` says why). */
  memory: Memory | null;
  memory_note: string;
  /** Estimated seconds for the kernel to predict the memory; missing if the kernel cannot be asked. */
  predict_s?: number;
  /** Predicted recomputations, by storage; missing if unknown. See widgets/deck/recompute_data.py. */
  replays?: {
    task: number[];
    storage: number[];
    count: number[];
    bytes: number[];
    ns: number[];
    kept: number[];
    kept_bytes: number[];
  };
  /** Peak memory of each device while the task at each place ran, bytes; missing if there is only one device. */
  lane_levels?: { device: number; levels: number[] }[];
  /** Predicted memory of the backward without the plan, and with it. */
  curves?: Curve[];
}

/**
 * Memory levels of one run. `levels[i]` is the level before event i; the task at place k has the levels from
 * `starts[k]` to `starts[k + 1]`.
 */
export interface Curve {
  name: "plain" | "planned";
  starts: number[];
  levels: number[];
}

/** Allocations and frees of storages in order; see engine/memory/timeline.py. */
export interface Memory {
  device: string;
  basis: "measured" | "calibrated" | "dry run";
  estimates: string[];
  /** The reason to show if there is space for only one; "" or absent without reasons. */
  main_reason?: string;
  before: number;
  nbytes: number[];
  /** Events: `n` if storage n is allocated, `~n` if it is freed. */
  events: number[];
  /** Index of the first event of each place, and the end of the last. */
  starts: number[];
  /** Place of the task that caused each event; present if tasks of several devices overlap. */
  event_places?: number[];
  born_as: number[];
  /**
   * Changes of category, four numbers each: the event before which the change happens, the place of its task, the
   * storage and its new category. Sorted by event and place: several tasks may run between two events.
   */
  changes: number[];
  /** Sentence about the peak, without its bytes: "48 weight gradients wait for TBackward0". */
  peak: string;
  /** Times of the forward's events, nanoseconds since the first one; empty if unknown. */
  forward_ns: number[];
  /** True if this is a whole training step: it starts with the storages in `before`, and ends after the optimizer. */
  step?: boolean;
  /** Rows with the largest bytes × time; see widgets/deck/page_data.py. */
  rows: LifetimeRow[];
}

/** A row of lifetimes: the equivalent storages of identical layers. */
export interface LifetimeRow {
  name: string;
  /** Path with wildcards: "blocks.*.attn" */
  module: string;
  count: number;
  /** Size of each storage. */
  nbytes: number;
  /** Storages in order of allocation. Of more than four, only the first allocated and the last freed. */
  storages: number[];
  made_by: string;
  kept_by: string;
  freed_by: string;
}

export interface TaskRecord {
  inputs: (Gradient | null)[];
  /** Outputs; empty until the task has run. */
  outputs: (Gradient | null)[];
  elapsed_ns: number | null;
  /** True if the user edited its inputs. */
  edited?: boolean;
  /** Hooks that ran: "tensor hook double_it". Missing if none ran. */
  hooks?: string[];
}

export interface Gradient {
  meta: number;
  /** Statistics of the finite elements; null if there are none, missing if not computed (`why` says the reason). */
  min?: number | null;
  max?: number | null;
  mean?: number | null;
  norm?: number | null;
  nan?: number;
  inf?: number;
  zero?: number;
  /** Number of the first bin, and the counts from there; see EDGES in engine/recording/statistics.py. */
  first_bin?: number;
  bins?: number[];
  why?: string;
}

/** Stacking order of the memory categories, lowest first: memory that lives through a whole step is at the bottom. */
export const FROM_BELOW = [9, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8] as const;

/** Memory categories, indexed by their number in engine/memory/timeline.py. */
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
