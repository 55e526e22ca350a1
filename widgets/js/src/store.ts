/** The one state of a deck's page, shared by all of its views, and what changes it. */

import { type AxisKind, WHOLE, type Zoom } from "./model/axis.ts";
import type { Branch, Check, DeckDocument, Direction, Groups, Memory, Schedule, TaskRecord } from "./model/document.ts";
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
  /** The position that is shown: so many tasks of the shown schedule have run, the next one is looked at. */
  t: number;
  /** The schedule that is shown. */
  tab: number;
  /** How many tasks of the session's own order have run. What lies beyond is planned. */
  front: number;
  status: Status;
  /** Why a live session failed or does not answer; "" where it does. */
  trouble: string;
  playing: boolean;
  /** Tasks per second. */
  speed: number;
  /** How many it comes to, where that is notably less; null where it keeps up, or nothing plays. */
  reached: number | null;
  selected: number | null;
  /** Tasks with a breakpoint of their own. */
  breakpoints: ReadonlySet<number>;
  stops: readonly StopPoint[];
  /** The tasks before which any breakpoint may stop; follows from the two above. */
  marks: Marks;
  /** The breakpoint or watchpoint at which a live session stands. */
  stopped: Stopped | null;
  /** What going back would cost; null where nothing can be taken back. */
  history: History | null;
  branches: readonly Branch[];
  checks: Readonly<Record<string, Check>>;
  /** The task whose check has not been answered. */
  checking: number | null;
  hoveredTask: number | null;
  /** The time under the pointer in the timeline, see model/axis.ts: below 0 in the forward. */
  hoveredTime: number | null;
  query: string;
  /** By task whether it matches the query; null without one. */
  matches: Uint8Array | null;
  /** Whether the search field has the focus: only then what does not match is faded. */
  searching: boolean;
  /** Whether the memory's scale is that of the shown policy alone. */
  ownScale: boolean;
  /** What the timeline goes by, and the part of it that is seen. */
  axis: AxisKind;
  zoom: Zoom;
  /** Whether the deck takes the whole window. */
  isFull: boolean;
  /** The boxes that are open, see layout/box_tree.ts. */
  open: ReadonlySet<number>;
  /** The equal layers that were asked for, by the box that is drawn for them. */
  layers: ReadonlyMap<number, number>;
  /** "follow": the camera keeps the running task in view; "fit": all in view; "free": the reader has moved it. */
  camera: "follow" | "fit" | "free";
  /** The groups that are outlined. */
  groups: Direction | "off";
  /** The group, or what was refused, that is picked out, by its index in `Outlines.all`; null for none. */
  group: number | null;
  hoveredGroup: number | null;
  /** What the reader chose; null: as the page around it. */
  theme: Theme | null;
  /** Counts up when schedules, memory or records have come from the kernel. */
  revision: number;
}

export type Changed = ReadonlySet<keyof State>;

const MOVES = ["t", "tab", "front", "status", "revision"] as const;

/** Whether another moment is shown, or more has run. Where it does not hold, the pointer may have moved alone. */
export function hasMoved(changed: Changed): boolean {
  return MOVES.some((name) => changed.has(name));
}

/** What a session's history holds, in bytes, and the first position that it can go back to. */
export interface History {
  bytes: number;
  gradient_bytes: number;
  saved_bytes: number;
  reach: number;
}

/** What the kernel may be asked for, besides running on. */
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

/** What runs a live session: the kernel, or nobody in a saved page. */
export interface Link {
  /** Whether the kernel has not answered the last command yet. */
  readonly busy: boolean;
  /** Runs so many tasks. */
  step(count: number): void;
  /** Runs this ready task next. */
  stepTask(task: number): void;
  runTo(task: number): void;
  /** To the next breakpoint, or to the end. */
  run(): void;
  stop(): void;
  setPolicy(policy: string): void;
  /** Asks for the gradients that wait for a task. */
  inspect(task: number): void;
  ask(command: Command): void;
}

/** What a live session has done, as widgets/deck/live_publisher.py tells it. */
export interface Progress {
  position: number;
  status: Status;
  trouble: string;
  stopped: Stopped | null;
  history: History | null;
  /** Tasks that were taken back; `records` are newer. */
  forgotten: number[];
  records: Record<string, TaskRecord>;
  checks: Record<string, Check>;
  /** The session's own schedule, where it is another than before. */
  live: Schedule | null;
  /** Those of the other policies, and of branches, where they are. */
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
  /** null where nobody has looked for groups. */
  outlines: Outlines | null;
  private replays: Replay[];
  /** See `decades`; undefined before somebody asks. */
  private axis: Decades | null | undefined;
  /** Whose order `marks` are of. */
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
      groups: "off",
      group: null,
      hoveredGroup: null,
      theme: null,
      revision: 0,
    };
  }

  /** Calls `listener` after each change with the names of what changed. Returns what ends that. */
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

  /** The task at the position shown; -1 at the end. */
  get running(): number {
    return this.replay.running(this.state.t);
  }

  /** The task that the inspector shows. */
  get shown(): number {
    const { selected } = this.state;
    if (selected !== null) return selected;
    return this.running >= 0 ? this.running : this.replay.running(this.replay.length - 1);
  }

  /** Whether the session itself is on the screen, not another policy's simulation. */
  get isLive(): boolean {
    return this.link !== null && this.state.tab === 0;
  }

  /** The branch whose order is shown, one that the session has left; null for any other order. */
  get branch(): Branch | null {
    const { branches, tab } = this.state;
    return (tab && branches.find(({ number }) => this.replay.schedule.policy === `branch ${number}`)) || null;
  }

  /** How many tasks of the shown order have run; of a policy's simulation none have. */
  get reached(): number {
    return this.branch ? this.branch.ran : this.isSimulated ? 0 : this.state.front;
  }

  /** Whether the moment that is shown is one that the session can be taken back to. */
  get canRewind(): boolean {
    const { t, front, history, status } = this.state;
    const isAtRest = status === "stopped" || status === "finished" || status === "failed";
    return this.isLive && history !== null && history.reach <= t && t < front && isAtRest;
  }

  /** Whether what waits for the task at the position can be changed. */
  get canEdit(): boolean {
    const { t, front, status } = this.state;
    return this.isLive && status === "stopped" && t === front && this.shown === this.running;
  }

  /** How far the shown order can be played: a session that has failed or was closed goes no further. */
  get limit(): number {
    const { status, front } = this.state;
    return this.isLive && (status === "failed" || status === "closed") ? front : this.replay.length;
  }

  /** Whether what is shown is what another policy would do: nothing of it has run. */
  get isSimulated(): boolean {
    return this.state.tab !== 0 && !this.branch;
  }

  /** Why what is shown at the position is not what runs or has run; null where it is. */
  get unreal(): Unreal | null {
    if (this.isSimulated) return "simulated";
    if (this.failed >= 0) return "failed";
    return this.isAhead ? "planned" : null;
  }

  /** The task that has raised, where it is looked at; -1 for none. */
  get failed(): number {
    const { status, t, front } = this.state;
    return this.isLive && status === "failed" && t === front ? this.running : -1;
  }

  /** Whether the next task has to wait for the kernel, which runs one, or has not answered yet. */
  get waits(): boolean {
    const { t, front, status } = this.state;
    return this.link !== null && this.isLive && t >= front && (this.link.busy || status === "running");
  }

  /** Whether there is anything to play: from the front of a session that is over nothing goes on. */
  get canPlay(): boolean {
    const { status, t, front } = this.state;
    return !(this.isLive && t >= front && (status === "failed" || status === "closed"));
  }

  /** Whether a live session stands at what is shown: only there a step runs anything. */
  get isAtFront(): boolean {
    return this.isLive && this.state.t === this.state.front;
  }

  /** How far one can look on from the position: to where a live session stands, from there or ahead of it to the end. */
  get edge(): number {
    const { t, front } = this.state;
    return this.isLive && t < front ? front : this.replay.length;
  }

  /** Whether what is shown at the position is only planned: the session has not come that far. */
  get isAhead(): boolean {
    return !this.isSimulated && this.state.t > this.reached;
  }

  /** How many tasks have run at the moment that is shown: none of those that are only planned. */
  get ran(): number {
    return Math.min(this.state.t, this.reached);
  }

  /** The histograms' axis: what all gradients that were recorded use of it, so that it stays from task to task. */
  get decades(): Decades | null {
    this.axis ??= decadesIn(this.document.records);
    return this.axis;
  }

  /** What was recorded of a task: in the session itself, so nothing of what a branch did alone. */
  record(task: number): TaskRecord | undefined {
    if (this.branch && this.replay.place[task] >= this.branch.forked_at) return undefined;
    return this.document.records[task];
  }

  /** Shows another position. */
  go(t: number): void {
    this.update({ t: Math.max(0, Math.min(this.replay.length, Math.round(t))), selected: null });
  }

  /** One task on: shown, or run where a live session stands here. Elsewhere the session stays where it is. */
  step(count = 1): void {
    this.update({ playing: false });
    this.advance(count);
  }

  /** As `step`, while it plays. */
  advance(count: number): void {
    const { t, front, status, playing } = this.state;
    if (this.link && (this.isAtFront || (this.isLive && playing && t > front))) {
      // What plays waits for the kernel, and plays from where the reader is: the kernel comes after. Each click counts.
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
    if (playing && this.waits) this.link?.stop(); // the kernel may have been given several tasks
    this.update({ playing: !playing });
  }

  /** To the next breakpoint, or the end. */
  run(): void {
    this.update({ playing: false });
    const limit = this.isLive ? this.state.front : this.replay.length;
    const place = this.nextStop(limit);
    if (place === null && this.link && this.isLive && this.state.status === "stopped") this.link.run();
    else this.go(place ?? limit);
  }

  /** To the next position, up to this one, that is before a breakpoint: also where a session was stopped by it. */
  nextStop(until: number): number | null {
    const { order } = this.replay.schedule;
    for (let place = this.state.t + 1; place <= until; place++) {
      if (this.state.marks.get(order[place])) return place;
    }
    return null;
  }

  /** Until all tasks of the task's module call have run; `out`: of the call around it. */
  stepOver(out = false): void {
    this.update({ playing: false });
    if (this.link && this.isAtFront) {
      if (this.state.status === "stopped") this.link.ask({ kind: out ? "step_out" : "step_over" });
      return;
    }
    const end = Math.min(endOfCall(this.replay, this.state.t, out), this.edge);
    this.go(this.nextStop(end) ?? end);
  }

  /** To the end, breakpoints or not, of what has run; a live session runs on to its breakpoints. */
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

  /** Deletes a breakpoint or a watchpoint. */
  remove({ number, tasks }: StopPoint): void {
    if (this.link) this.link.ask({ kind: "delete", number });
    else this.toggleBreakpoint(tasks[0]);
  }

  /** Takes the session back to what is shown. */
  rewind(): void {
    this.update({ playing: false });
    if (this.canRewind) this.link?.ask({ kind: "rewind", position: this.state.t });
  }

  /** Has a task's backward compared with its forward. */
  check(task: number): void {
    this.update({ checking: task });
    this.link?.ask({ kind: "check", task });
  }

  /** Has the session go on from where the shown branch was left. */
  takeBranch(): void {
    const { branch } = this;
    if (!branch) return;
    this.link?.ask({ kind: "branch", number: branch.number });
    this.show(0);
    this.go(this.state.front);
  }

  /** Shows another policy at the same position. */
  show(tab: number): void {
    if (tab < 0 || tab >= this.schedules.length || tab === this.state.tab) return;
    this.update({ tab, selected: null, playing: false });
    this.go(this.state.t);
  }

  /** Outlines the groups of a direction, of the first one if none is given, or no longer. The kernel may have to look. */
  showGroups(direction: Direction | "off" | null = null): void {
    if (!this.outlines) this.link?.ask({ kind: "groups" });
    const groups = direction ?? (this.state.groups === "off" ? (this.outlines?.directions[0] ?? "backward") : "off");
    this.update({ groups, group: null, hoveredGroup: null });
  }

  /** Has equal layers show this one, or no longer. */
  pinLayer(box: number, layer: number): void {
    const layers = new Map(this.state.layers);
    if (layers.get(box) === layer) layers.delete(box);
    else layers.set(box, layer);
    this.update({ layers });
  }

  /** Picks out one group, or no longer. */
  pickGroup({ index, direction }: Outline): void {
    this.update({ groups: direction, group: this.state.group === index ? null : index });
  }

  /** Whether groups are known, or can be asked for. */
  get canGroup(): boolean {
    return this.outlines !== null || (this.link !== null && this.state.status !== "closed");
  }

  /** The one that is pointed at, in the list or by one of its tasks, or else the one that was picked out. */
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

  /** Takes what a live session has done. */
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
    // Who looks at what is taken back is taken along.
    const atFront = this.isLive && (state.t >= state.front || state.t > position);
    let { tab } = state;
    if (news.live || news.others) {
      this.replan(news.live, news.others);
      tab = tab && Math.max(0, this.schedules.findIndex((schedule) => schedule.policy === shown));
    }
    const goesOn = status === "running" || (status === "stopped" && !stopped && !this.isBreakpoint(position));
    const comesAfter = state.playing && goesOn && position < state.t;
    const moved = atFront && position !== state.t && !comesAfter;
    this.update({
      tab,
      front: position,
      status,
      trouble,
      stopped: stopped?.why === "asked" ? null : stopped, // who has asked for it knows
      history: news.history ?? null,
      branches: news.branches ?? state.branches,
      checks: Object.keys(news.checks ?? {}).length ? { ...state.checks, ...news.checks } : state.checks,
      checking: null,
      revision: state.revision + 1,
      playing: state.playing && (!atFront || goesOn),
      ...(moved ? { t: position, selected: null } : {}),
      ...(news.groups ? { group: null, hoveredGroup: null } : {}),
    });
  }

  /** A schedule that stays keeps its replay: those of the other policies are as long, and seldom change. */
  private replan(live: Schedule | null, others: Schedule[] | null): void {
    const { document, graph, replays } = this;
    const [was, ...were] = document.schedules;
    document.schedules = [live ?? was, ...(others ?? were)];
    const known = new Map(replays.map((replay) => [replay.schedule, replay]));
    this.replays = document.schedules.map((schedule) => known.get(schedule) ?? new Replay(graph, schedule));
  }

  /**
   * Whether a live session that has come so far stands before a breakpoint of that task: `stopped` says it of the
   * others, which need not stop each time.
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
