/** State of a deck's page, shared by all of its views, and the actions that change it. */

import type { Wire } from "./graph/scene_types.ts";
import { type AxisKind, WHOLE, type Zoom } from "./model/axis.ts";
import type { Branch, Check, DeckDocument, Direction, Groups, Memory, Schedule, TaskRecord } from "./model/document.ts";
import { creationOf } from "./model/creation.ts";
import { find } from "./model/find.ts";
import { DeckGraph } from "./model/graph.ts";
import { type Decades, decadesOf, joined } from "./model/histogram.ts";
import { type Outline, Outlines } from "./model/outlines.ts";
import { Replay } from "./model/replay.ts";
import { endOfCall, type Marks, marksOf, ownStops, type Stopped, type StopPoint } from "./model/stops.ts";
import type { Unreal } from "./model/task_timing_words.ts";

export type Theme = "light" | "dark";
export type Status = "trace" | "stopped" | "running" | "finished" | "failed" | "closed";

export interface State {
  /** Shown position: number of tasks of the shown schedule that have run. The next task is the current one. */
  t: number;
  /** Index of the shown schedule. */
  tab: number;
  /** Number of tasks of the session's own order that have run; later ones are planned. */
  front: number;
  status: Status;
  /** Reason why the live session failed or does not answer; "" if it works. */
  trouble: string;
  playing: boolean;
  /** Tasks per second. */
  speed: number;
  /** Actual speed if it is notably lower; otherwise, or without playback, null. */
  reached: number | null;
  selected: number | null;
  /** Tasks with a breakpoint on the task itself. */
  breakpoints: ReadonlySet<number>;
  stops: readonly StopPoint[];
  /** Tasks before which any breakpoint may stop; computed from `breakpoints` and `stops`. */
  marks: Marks;
  /** Breakpoint or watchpoint at which the live session has stopped. */
  stopped: Stopped | null;
  /** Memory held by the undo history; null if nothing can be undone. */
  history: History | null;
  branches: readonly Branch[];
  checks: Readonly<Record<string, Check>>;
  /** Task whose check is not finished. */
  checking: number | null;
  hoveredTask: number | null;
  /** Wire of the graph under the pointer. */
  hoveredWire: Wire | null;
  /** Time under the pointer in the timeline, see model/axis.ts; negative in the forward. */
  hoveredTime: number | null;
  query: string;
  /** For each task, 1 if it matches the query; null without a query. */
  matches: Uint8Array | null;
  /** True if the search field has the focus; only then tasks that do not match are faded. */
  searching: boolean;
  /** True if the memory scale ignores the other policies. */
  ownScale: boolean;
  /** Kind of the timeline's axis; `zoom` is its visible part. */
  axis: AxisKind;
  zoom: Zoom;
  /** True if the deck fills the window. */
  isFull: boolean;
  /** Open boxes, see layout/box_tree.ts. */
  open: ReadonlySet<number>;
  /** Pinned layers, by the box that represents the equal layers. */
  layers: ReadonlyMap<number, number>;
  /**
   * "follow": the camera keeps the running task in view; "fit": the whole graph is in view; "free": the user moved it.
   */
  camera: "follow" | "fit" | "free";
  /** True if the graph colours tasks by the time of their creation. */
  byCreation: boolean;
  /** Direction of the outlined groups. */
  groups: Direction | "off";
  /** Index in `Outlines.all` of the selected group; null if none. */
  group: number | null;
  hoveredGroup: number | null;
  /** Theme chosen by the user; null to follow the surrounding page. */
  theme: Theme | null;
  /** Number of updates of schedules, memory or records from the kernel. */
  revision: number;
}

export type Changed = ReadonlySet<keyof State>;

const MOVES = ["t", "tab", "front", "status", "revision"] as const;

/** Return whether the shown moment or the number of executed tasks changed. If not, perhaps only the pointer moved. */
export function hasMoved(changed: Changed): boolean {
  return MOVES.some((name) => changed.has(name));
}

/** Bytes held by a session's undo history, and the earliest position that it can return to. */
export interface History {
  bytes: number;
  gradient_bytes: number;
  saved_bytes: number;
  reach: number;
}

/** Commands to the kernel, besides running tasks. */
export type Command =
  | { kind: "rewind"; position: number }
  | { kind: "branch" | "delete"; number: number }
  | { kind: "enable"; number: number; on: boolean }
  | { kind: "break"; where: string }
  | { kind: "watch"; condition: string }
  | { kind: "edit"; how: "zero" | "scale" | "clip" | "restore"; value: number | null }
  | { kind: "check"; task: number }
  | { kind: "step"; device: string }
  | { kind: "step_over" | "step_out" | "groups" | "predict" };

/** Connection to a live session; a saved page has none. */
export interface Link {
  /** True if the kernel has not answered the last command yet. */
  readonly busy: boolean;
  /** Run this many tasks. */
  step(count: number): void;
  /** Run this ready task next. */
  stepTask(task: number): void;
  runTo(task: number): void;
  /** Run to the next breakpoint or to the end. */
  run(): void;
  stop(): void;
  setPolicy(policy: string): void;
  /** Request the gradients in a task's input buffer. */
  inspect(task: number): void;
  ask(command: Command): void;
}

/** An update of a live session, sent by widgets/deck/live_publisher.py. */
export interface Progress {
  position: number;
  status: Status;
  trouble: string;
  stopped: Stopped | null;
  history: History | null;
  /** Tasks that were undone; `records` are newer. */
  forgotten: number[];
  records: Record<string, TaskRecord>;
  checks: Record<string, Check>;
  /** The session's own schedule, if it changed. */
  live: Schedule | null;
  /** Schedules of other policies and branches, if they changed. */
  others: Schedule[] | null;
  branches: Branch[] | null;
  groups?: Groups | null;
  replayed?: Record<string, [number, number]>;
  metas: DeckDocument["metas"];
}

const SPEEDS = [2, 5, 12, 30, 120, 1000] as const;

export class Store {
  readonly graph: DeckGraph;
  readonly state: State;
  readonly speeds = SPEEDS;
  /** Groups of products; null if the kernel has not searched for them. */
  outlines: Outlines | null;
  private replays: Replay[];
  /** Cached value of `decades`; undefined before the first use. */
  private axis: Decades | null | undefined;
  /** Order for which `marks` was computed. */
  private markedFor: Replay;
  private readonly listeners = new Set<(changed: Changed) => void>();

  constructor(
    readonly document: DeckDocument,
    readonly link: Link | null,
  ) {
    this.graph = new DeckGraph(document);
    this.replays = document.schedules.map((schedule) => new Replay(this.graph, schedule));
    [this.markedFor] = this.replays;
    this.outlines = document.groups ? new Outlines(document.groups) : null;
    const whole = document.schedules[0].order.length;
    this.state = {
      t: document.position < whole || link ? document.position : 0,
      tab: 0,
      front: document.position,
      status: link ? (document.position < whole ? "stopped" : "finished") : "trace",
      trouble: "",
      playing: false,
      speed: 5,
      reached: null,
      selected: null,
      breakpoints: new Set(),
      stops: [],
      marks: new Map(),
      stopped: null,
      history: null,
      branches: document.branches ?? [],
      checks: document.checks ?? {},
      checking: null,
      hoveredTask: null,
      hoveredWire: null,
      hoveredTime: null,
      query: "",
      matches: null,
      searching: false,
      ownScale: false,
      axis: "task",
      zoom: WHOLE,
      isFull: false,
      open: new Set(),
      layers: new Map(),
      camera: "follow",
      byCreation: false,
      groups: "off",
      group: null,
      hoveredGroup: null,
      theme: null,
      revision: 0,
    };
  }

  /** Call `listener` after each change with the names of the changed fields. Return a function that unsubscribes it. */
  subscribe(listener: (changed: Changed) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  update(patch: Partial<State>): void {
    const replay = this.replays[patch.tab ?? this.state.tab];
    if (patch.breakpoints || patch.stops || replay !== this.markedFor) {
      const breakpoints = patch.breakpoints ?? this.state.breakpoints;
      const { stops: before } = this.state;
      const stops = patch.stops ?? (this.link ? before : ownStops(before, breakpoints));
      patch = { ...patch, stops, marks: marksOf(stops, breakpoints, replay) };
      this.markedFor = replay;
    }
    const changed = new Set<keyof State>();
    for (const key of Object.keys(patch) as (keyof State)[]) {
      if (this.state[key] !== patch[key]) changed.add(key);
    }
    if (!changed.size) return;
    Object.assign(this.state, patch);
    for (const listener of [...this.listeners]) listener(changed);
  }

  get replay(): Replay {
    return this.replays[this.state.tab];
  }

  get schedules(): readonly Schedule[] {
    return this.document.schedules;
  }

  replayOf(tab: number): Replay {
    return this.replays[tab];
  }

  get memory(): Memory | null {
    return this.replay.schedule.memory;
  }

  /** Task at the shown position; -1 at the end. */
  get running(): number {
    return this.replay.running(this.state.t);
  }

  /** Task shown in the inspector. */
  get shown(): number {
    const { selected } = this.state;
    if (selected !== null) return selected;
    return this.running >= 0 ? this.running : this.replay.running(this.replay.length - 1);
  }

  /** True if the session's own order is shown, not the simulation of another policy. */
  get isLive(): boolean {
    return this.link !== null && this.state.tab === 0;
  }

  /** Abandoned branch whose order is shown; null for any other order. */
  get branch(): Branch | null {
    const { branches, tab } = this.state;
    return (tab && branches.find(({ number }) => this.replay.schedule.policy === `branch ${number}`)) || null;
  }

  /** Number of tasks of the shown order that have run; 0 for a simulation. */
  get reached(): number {
    return this.branch ? this.branch.ran : this.isSimulated ? 0 : this.state.front;
  }

  /** True if the session can be rewound to the shown moment. */
  get canRewind(): boolean {
    const { t, front, history, status } = this.state;
    const isAtRest = status === "stopped" || status === "finished" || status === "failed";
    return this.isLive && history !== null && history.reach <= t && t < front && isAtRest;
  }

  /** True if the input buffer of the task at the position can be edited. */
  get canEdit(): boolean {
    const { t, front, status } = this.state;
    return this.isLive && status === "stopped" && t === front && this.shown === this.running;
  }

  /** Last position of the shown order that playback can reach; a failed or closed session ends at its front. */
  get limit(): number {
    const { status, front } = this.state;
    return this.isLive && (status === "failed" || status === "closed") ? front : this.replay.length;
  }

  /** True if the shown order is a simulation, usually of another policy, of which nothing has run. */
  get isSimulated(): boolean {
    return (this.state.tab !== 0 || this.document.is_simulated === true) && !this.branch;
  }

  /** Reason why the moment at the position is not what runs or has run; null if it is. */
  get unreal(): Unreal | null {
    if (this.isSimulated) return "simulated";
    if (this.failed >= 0) return "failed";
    return this.isAhead ? "planned" : null;
  }

  /** Failed task, if the position shows it; else -1. */
  get failed(): number {
    const { status, t, front } = this.state;
    return this.isLive && status === "failed" && t === front ? this.running : -1;
  }

  /** True if the next task has to wait for the kernel, which is running one or has not answered yet. */
  get waits(): boolean {
    const { t, front, status } = this.state;
    return this.link !== null && this.isLive && t >= front && (this.link.busy || status === "running");
  }

  /** True if playback is possible; it is not from the front of a session that has ended. */
  get canPlay(): boolean {
    const { status, t, front } = this.state;
    return !(this.isLive && t >= front && (status === "failed" || status === "closed"));
  }

  /** True if the position is where a live session stands; only there a step runs a task. */
  get isAtFront(): boolean {
    return this.isLive && this.state.t === this.state.front;
  }

  /**
   * Last position that stepping shows: the front of a live session, or the end if the position is at or beyond the
   * front.
   */
  get edge(): number {
    const { t, front } = this.state;
    return this.isLive && t < front ? front : this.replay.length;
  }

  /** True if the position is beyond the session's front and therefore only planned. */
  get isAhead(): boolean {
    return !this.isSimulated && this.state.t > this.reached;
  }

  /** Number of tasks that have run at the shown moment, without planned ones. */
  get ran(): number {
    return Math.min(this.state.t, this.reached);
  }

  /** Axis of the histograms: covers all recorded gradients, so that it stays the same from task to task. */
  get decades(): Decades | null {
    this.axis ??= decadesIn(this.document.records);
    return this.axis;
  }

  /** Return the record of a task in the session itself; records of abandoned branches are not included. */
  record(task: number): TaskRecord | undefined {
    if (this.branch && this.replay.place[task] >= this.branch.forked_at) return undefined;
    return this.document.records[task];
  }

  /** Show another position. */
  go(t: number): void {
    this.update({ t: Math.max(0, Math.min(this.replay.length, Math.round(t))), selected: null });
  }

  /** Advance by tasks: run them if a live session stands here, otherwise only show the next positions. */
  step(count = 1): void {
    this.update({ playing: false });
    this.advance(count);
  }

  /** Advance during playback. */
  advance(count: number): void {
    const { t, front, status, playing } = this.state;
    if (this.link && (this.isAtFront || (this.isLive && playing && t > front))) {
      // Playback waits for the kernel, and plays from the shown position; the kernel catches up. Each click counts.
      if (status === "stopped" && !(playing && this.link.busy)) this.link.step(playing ? t - front + count : count);
    } else this.go(Math.min(t + count, this.edge));
  }

  back(count = 1): void {
    this.update({ playing: false });
    this.go(this.state.t - count);
  }

  play(): void {
    const { playing, t } = this.state;
    if (!playing && !this.canPlay) return;
    if (!playing && t >= this.limit) this.go(0);
    if (playing && this.waits) this.link?.stop(); // the kernel may still have several tasks to run
    this.update({ playing: !playing });
  }

  /** Advance to the next breakpoint or the end. */
  run(): void {
    this.update({ playing: false });
    const limit = this.isLive ? this.state.front : this.replay.length;
    const place = this.nextStop(limit);
    if (place === null && this.link && this.isLive && this.state.status === "stopped") this.link.run();
    else this.go(place ?? limit);
  }

  /**
   * Return the next position up to `until` that is before a breakpoint, including one that has already stopped the
   * session.
   */
  nextStop(until: number): number | null {
    const { order } = this.replay.schedule;
    for (let place = this.state.t + 1; place <= until; place++) {
      if (this.state.marks.get(order[place])) return place;
    }
    return null;
  }

  /** Advance until all tasks of the task's module call have run; with `out`, those of the enclosing call. */
  stepOver(out = false): void {
    this.update({ playing: false });
    if (this.link && this.isAtFront) {
      if (this.state.status === "stopped") this.link.ask({ kind: out ? "step_out" : "step_over" });
      return;
    }
    const end = Math.min(endOfCall(this.replay, this.state.t, out), this.edge);
    this.go(this.nextStop(end) ?? end);
  }

  /** Show the end of what has run, ignoring breakpoints; a live session runs on and stops at its breakpoints. */
  end(): void {
    if (this.isAtFront) return this.run();
    this.update({ playing: false });
    this.go(this.edge);
  }

  select(task: number | null): void {
    this.update({ selected: task === this.state.selected ? null : task });
  }

  toggleBreakpoint(task: number): void {
    const breakpoints = new Set(this.state.breakpoints);
    if (!breakpoints.delete(task)) breakpoints.add(task);
    this.update({ breakpoints });
  }

  enable(number: number, on: boolean): void {
    if (this.link) return this.link.ask({ kind: "enable", number, on });
    this.update({ stops: this.state.stops.map((each) => (each.number === number ? { ...each, enabled: on } : each)) });
  }

  /** Delete a breakpoint or a watchpoint. */
  remove({ number, tasks }: StopPoint): void {
    if (this.link) this.link.ask({ kind: "delete", number });
    else this.toggleBreakpoint(tasks[0]);
  }

  /** Rewind the session to the shown position. */
  rewind(): void {
    this.update({ playing: false });
    if (this.canRewind) this.link?.ask({ kind: "rewind", position: this.state.t });
  }

  /** Ask the kernel to compare a task's backward with its forward. */
  check(task: number): void {
    this.update({ checking: task });
    this.link?.ask({ kind: "check", task });
  }

  /** Ask the kernel to continue from the end of the shown branch. */
  takeBranch(): void {
    const { branch } = this;
    if (!branch) return;
    this.link?.ask({ kind: "branch", number: branch.number });
    this.show(0);
    this.go(this.state.front);
  }

  /** Show another policy at the same position. */
  show(tab: number): void {
    if (tab < 0 || tab >= this.schedules.length || tab === this.state.tab) return;
    this.update({ tab, selected: null, playing: false });
    this.go(this.state.t);
  }

  /**
   * Outline the groups of a direction, by default the first one with groups, or hide them. The kernel may have to
   * search for them first.
   */
  showGroups(direction: Direction | "off" | null = null): void {
    if (!this.outlines) this.link?.ask({ kind: "groups" });
    const groups = direction ?? (this.state.groups === "off" ? (this.outlines?.directions[0] ?? "backward") : "off");
    this.update({ groups, group: null, hoveredGroup: null });
  }

  /** Show this layer for its equal layers, or return to the automatic choice. */
  pinLayer(box: number, layer: number): void {
    const layers = new Map(this.state.layers);
    if (layers.get(box) === layer) layers.delete(box);
    else layers.set(box, layer);
    this.update({ layers });
  }

  /** Select a group, or deselect it. */
  pickGroup({ index, direction }: Outline): void {
    this.update({ groups: direction, group: this.state.group === index ? null : index });
  }

  /** Colour tasks by the time of their creation, or by their state alone. */
  colourByCreation(): void {
    if (creationOf(this.graph)) this.update({ byCreation: !this.state.byCreation });
  }

  /** True if groups are known or the kernel can search for them. */
  get canGroup(): boolean {
    return this.outlines !== null || (this.link !== null && this.state.status !== "closed");
  }

  /** Group under the pointer, in the list or by one of its tasks; otherwise the selected group. */
  get litGroup(): Outline | null {
    const { groups, group, hoveredGroup, hoveredTask } = this.state;
    if (groups === "off" || !this.outlines) return null;
    const { outlines } = this;
    if (hoveredGroup !== null) return outlines.all[hoveredGroup];
    const around = hoveredTask === null ? [] : outlines.around(hoveredTask);
    const pointed = around.find((outline) => outline.direction === groups && outline.name);
    return pointed ?? (group === null ? null : outlines.all[group]);
  }

  find(query: string): void {
    this.update({ query, matches: find(this.replay, query) });
  }

  /** Apply an update of the live session. */
  progress(news: Progress): void {
    const { document, state } = this;
    const { position, status, trouble, stopped = null } = news;
    const shown = this.replay.schedule.policy;
    for (const task of news.forgotten ?? []) delete document.records[task];
    Object.assign(document.records, news.records);
    if (this.axis) this.axis = joined(this.axis, decadesIn(news.records));
    document.metas = news.metas;
    document.replayed = { ...document.replayed, ...news.replayed };
    if (news.groups) {
      document.groups = news.groups;
      this.outlines = new Outlines(news.groups);
    }
    document.position = position;
    // If undone tasks are on screen, the shown position follows the session back.
    const atFront = this.isLive && (state.t >= state.front || state.t > position);
    let { tab } = state;
    if (news.live || news.others) {
      this.replan(news.live, news.others);
      tab = tab && Math.max(0, this.schedules.findIndex((schedule) => schedule.policy === shown));
    }
    const canContinue = status === "running" || (status === "stopped" && !stopped && !this.isBreakpoint(position));
    const comesAfter = state.playing && canContinue && position < state.t;
    const moved = atFront && position !== state.t && !comesAfter;
    this.update({
      tab,
      front: position,
      status,
      trouble,
      stopped: stopped?.why === "asked" ? null : stopped, // a stop that the user requested needs no explanation
      history: news.history ?? null,
      branches: news.branches ?? state.branches,
      checks: Object.keys(news.checks ?? {}).length ? { ...state.checks, ...news.checks } : state.checks,
      checking: null,
      revision: state.revision + 1,
      playing: state.playing && (!atFront || canContinue),
      ...(moved ? { t: position, selected: null } : {}),
      ...(news.groups ? { group: null, hoveredGroup: null } : {}),
    });
  }

  /**
   * Replace schedules. Unchanged schedules keep their replays; those of other policies are as long and rarely change.
   */
  private replan(live: Schedule | null, others: Schedule[] | null): void {
    const { document, graph, replays } = this;
    const [was, ...were] = document.schedules;
    document.schedules = [live ?? was, ...(others ?? were)];
    const known = new Map(replays.map((replay) => [replay.schedule, replay]));
    this.replays = document.schedules.map((schedule) => known.get(schedule) ?? new Replay(graph, schedule));
  }

  /**
   * Return whether a live session at this position stands before a breakpoint of its next task. `stopped` covers the
   * others, which need not stop every time.
   */
  private isBreakpoint(position: number): boolean {
    const { breakpoints, marks } = this.state;
    const task = this.schedules[0].order[position];
    return breakpoints.has(task) && marks.get(task) === true;
  }
}

function decadesIn(records: Readonly<Record<string, TaskRecord>>): Decades | null {
  let found: Decades | null = null;
  for (const { inputs, outputs } of Object.values(records)) {
    found = joined(found, joined(decadesOf(inputs), decadesOf(outputs)));
  }
  return found;
}
