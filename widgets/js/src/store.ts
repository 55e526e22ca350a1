/** The one state of a deck's page, shared by all of its views, and what changes it. */

import type { DeckDocument, Memory, Schedule, TaskRecord } from "./model/document.ts";
import { find } from "./model/find.ts";
import { DeckGraph } from "./model/graph.ts";
import { Replay } from "./model/replay.ts";
import type { Unreal } from "./model/when.ts";

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
  selected: number | null;
  breakpoints: ReadonlySet<number>;
  hoveredTask: number | null;
  hoveredStorage: number | null;
  /** The position under the pointer in memory or lifetimes. */
  hoveredT: number | null;
  query: string;
  /** By task whether it matches the query; null without one. */
  matches: Uint8Array | null;
  /** Whether the memory's scale is that of the shown policy alone. */
  ownScale: boolean;
  /** How many lifetimes are shown. */
  rows: number;
  /** The boxes that are open, see layout/tree.ts. */
  open: ReadonlySet<number>;
  /** "follow": the camera keeps the running task in view; "fit": all in view; "free": the reader has moved it. */
  camera: "follow" | "fit" | "free";
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
}

/** What a live session has done, as widgets/live.py tells it. */
export interface Progress {
  position: number;
  status: Status;
  trouble: string;
  records: Record<string, TaskRecord>;
  /** The session's own schedule, where it is another than before. */
  live: Schedule | null;
  /** Those of the other policies, where they are. */
  others: Schedule[] | null;
  metas: DeckDocument["metas"];
}

const SPEEDS = [2, 5, 12, 30, 120, 1000] as const;

export class Store {
  readonly graph: DeckGraph;
  readonly state: State;
  readonly speeds = SPEEDS;
  private replays: Replay[];
  private readonly listeners = new Set<(changed: Changed) => void>();

  constructor(
    readonly document: DeckDocument,
    readonly link: Link | null,
  ) {
    this.graph = new DeckGraph(document);
    this.replays = document.schedules.map((schedule) => new Replay(this.graph, schedule));
    const whole = document.schedules[0].order.length;
    this.state = {
      t: document.position < whole || link ? document.position : 0,
      tab: 0,
      front: document.position,
      status: link ? (document.position < whole ? "stopped" : "finished") : "trace",
      trouble: "",
      playing: false,
      speed: 5,
      selected: null,
      breakpoints: new Set(),
      hoveredTask: null,
      hoveredStorage: null,
      hoveredT: null,
      query: "",
      matches: null,
      ownScale: false,
      rows: 10,
      open: new Set(),
      camera: "follow",
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

  /** How far the shown order can be played: a session that has failed or was closed goes no further. */
  get limit(): number {
    const { status, front } = this.state;
    return this.isLive && (status === "failed" || status === "closed") ? front : this.replay.length;
  }

  /** Whether what is shown is what another policy would do: nothing of it has run. */
  get isSimulated(): boolean {
    return this.state.tab !== 0;
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

  /** Whether there is anything to play: from the front of a session that is over nothing goes on. */
  get canPlay(): boolean {
    const { status, t, front } = this.state;
    return !(this.isLive && t >= front && (status === "failed" || status === "closed"));
  }

  /** Whether what is shown at the position is only planned: the session has not come that far. */
  get isAhead(): boolean {
    return !this.isSimulated && this.state.t > this.state.front;
  }

  /** How many tasks have run at the moment that is shown: none of those that are only planned. */
  get ran(): number {
    return this.isSimulated ? 0 : Math.min(this.state.t, this.state.front);
  }

  record(task: number): TaskRecord | undefined {
    return this.document.records[task];
  }

  /** Shows another position. */
  go(t: number): void {
    this.update({ t: Math.max(0, Math.min(this.replay.length, Math.round(t))), selected: null });
  }

  /** One task on: shown, or run where a live session stands here. */
  step(count = 1): void {
    this.update({ playing: false });
    this.advance(count);
  }

  /** As `step`, while it plays. */
  advance(count: number): void {
    const { t, front, status } = this.state;
    if (this.link && this.isLive && t >= front) {
      // What plays waits for the kernel; each click counts.
      if (status === "stopped" && !(this.state.playing && this.link.busy)) this.link.step(count);
      else if (t !== front) this.go(front);
    } else {
      const limit = this.isLive ? front : this.replay.length;
      this.go(Math.min(t + count, limit));
    }
  }

  back(count = 1): void {
    this.update({ playing: false });
    this.go(this.state.t - count);
  }

  play(): void {
    const { playing, t } = this.state;
    if (!playing && !this.canPlay) return;
    if (!playing && t >= this.limit) this.go(0);
    this.update({ playing: !playing });
  }

  /** To the next breakpoint, or the end. */
  run(): void {
    this.update({ playing: false });
    const { t, front, breakpoints } = this.state;
    const { order } = this.replay.schedule;
    const limit = this.isLive ? front : order.length;
    // A session that was stopped by a breakpoint stands before it: at its front.
    for (let place = t + 1; place <= limit; place++) if (breakpoints.has(order[place])) return this.go(place);
    if (this.link && this.isLive && this.state.status === "stopped") this.link.run();
    else this.go(limit);
  }

  /** To the end, breakpoints or not, of what has run; a live session runs on to its breakpoints. */
  end(): void {
    if (this.isLive && this.state.t >= this.state.front) this.run();
    else {
      this.update({ playing: false });
      this.go(this.isLive ? this.state.front : this.replay.length);
    }
  }

  select(task: number | null): void {
    this.update({ selected: task === this.state.selected ? null : task });
  }

  toggleBreakpoint(task: number): void {
    const breakpoints = new Set(this.state.breakpoints);
    if (!breakpoints.delete(task)) breakpoints.add(task);
    this.update({ breakpoints });
  }

  /** Shows another policy at the same position. */
  show(tab: number): void {
    if (tab < 0 || tab >= this.schedules.length || tab === this.state.tab) return;
    this.update({ tab, selected: null, playing: false, hoveredStorage: null });
    this.go(this.state.t);
  }

  find(query: string): void {
    this.update({ query, matches: find(this.graph, query) });
  }

  /** Takes what a live session has done. */
  progress(news: Progress): void {
    const { document, state } = this;
    const { position, status, trouble } = news;
    const shown = this.replay.schedule.policy;
    Object.assign(document.records, news.records);
    document.metas = news.metas;
    document.position = position;
    const atFront = this.isLive && state.t >= state.front;
    let { tab } = state;
    if (news.live || news.others) {
      this.replan(news.live, news.others);
      tab = tab && Math.max(0, this.schedules.findIndex((schedule) => schedule.policy === shown));
    }
    const moved = atFront && position !== state.t;
    const goesOn = status === "running" || (status === "stopped" && !this.isBreakpoint(position));
    this.update({
      tab,
      front: position,
      status,
      trouble,
      revision: state.revision + 1,
      playing: state.playing && (!atFront || goesOn),
      ...(moved ? { t: position, selected: null } : {}),
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

  /** Whether a live session that has come so far stands before a breakpoint. */
  private isBreakpoint(position: number): boolean {
    return this.state.breakpoints.has(this.schedules[0].order[position]);
  }
}
