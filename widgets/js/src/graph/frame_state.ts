/** Facts about the state at one moment that the drawing needs. */

import type { PlacedBox } from "../layout/layout_types.ts";
import type { Box } from "../layout/box_tree.ts";
import { type Mark, recomputeMarks, type Marks as RecomputeMarks } from "../model/recompute.ts";
import type { Replay, ShownState } from "../model/replay.ts";
import type { Marks } from "../model/stops.ts";
import type { Unreal } from "../model/task_timing_words.ts";
import type { Store } from "../store.ts";
import { type BoxCount, BoxCounts } from "./box_counts.ts";
import { LAST_NUMBERED } from "./glyphs.ts";
import { Grouping } from "./group_outlines.ts";
import { type Course, LayerChoice } from "./layer_choice.ts";
import { cardsOf, matchesOf, type Reach, reachedFrom, reachOf, wiresOf } from "./upstream_downstream.ts";
import type { Scene } from "./scene.ts";
import type { Spot, Wire } from "./scene_types.ts";

/** Opacity, during a search, of tasks that neither match nor are upstream or downstream of a match. */
const NO_MATCH = 0.35;
/** Opacity of other tasks without a search. */
const NOT_REACHED = 0.38;
/** Opacity of tasks upstream or downstream of the only match. */
const REACHED_IN_SEARCH = 0.65;

export interface Facts {
  scene: Scene;
  /** Version of the scene's choice of layers. */
  version: number;
  replay: Replay;
  t: number;
  /** Number of tasks that have actually run; less than `t` if the position is planned. */
  ran: number;
  /** Reason why the task at the position does not run now; null if it does. */
  unreal: Unreal | null;
  counts: BoxCounts;
  /** First places of the ready queue, starting at 1. */
  queuePlaces: ReadonlyMap<number, number>;
  /** The selected task, or else the running one, which has the ring. -1 for none. */
  ringed: number;
  /** The task under the pointer, or both ends of the wire there. */
  hovered: readonly number[];
  hoveredWire: Wire | null;
  /** Tasks and closed boxes with a breakpoint; the value is true if it is enabled. */
  breakpoints: Marks;
  cardBreakpoints: ReadonlyMap<PlacedBox, boolean>;
  /** True if tasks are coloured by the time of their creation. */
  byCreation: boolean;
  /** Search matches, also after the search field has lost the focus. */
  matches: Uint8Array | null;
  /** True if other tasks are faded, which is the case while the search field has the focus. */
  fades: boolean;
  cardMatches: Int32Array | null;
  reach: Reach | null;
  /** Upstream and downstream flags by wire; `cardReach` by closed box. */
  wireReach: Uint8Array | null;
  cardReach: Uint8Array | null;
  /** Recomputation marks by task and by closed box. */
  marks: RecomputeMarks;
  cardMarks: ReadonlyMap<number, Mark[]>;
  /** Outlined groups; null if none. */
  grouping: Grouping | null;
  /** Pinned layers, by box. */
  layers: ReadonlyMap<number, number>;
  /** Return the course of a box's equal layers. */
  courseOf(box: Box): Course | null;
}

/** Collector of the facts. Facts that depend only on the layout, the search or the selection are cached. */
export class FactFinder {
  private version = -1;
  private markedFor: Replay | null = null;
  private choice: LayerChoice | null = null;
  private reach: Reach | null = null;
  private wireReach: Uint8Array | null = null;
  private cardReach: Uint8Array | null = null;
  private cardMatches: Int32Array | null = null;
  private counts: BoxCounts | null = null;
  private scene: Scene | null = null;
  private matches: Uint8Array | null = null;
  private marks: Marks | null = null;
  private cardBreakpoints = new Map<PlacedBox, boolean>();
  private grouping: Grouping | null = null;
  private cardMarks: ReadonlyMap<number, Mark[]> = new Map();

  constructor(private readonly store: Store) {}

  at(scene: Scene): Facts {
    const { replay, state, ran, unreal } = this.store;
    const { t, selected, hoveredTask, marks: breakpoints, matches } = state;
    this.choose(scene);
    this.refresh(scene);
    const ringed = selected ?? replay.running(t);
    const hoveredWire = scene.wires.find((wire) => wire === state.hoveredWire) ?? null; // it may be of an earlier layout
    const { task, next } = scene.graph.document.edges;
    const [edge] = hoveredWire?.edges ?? [];
    const queuePlaces = new Map(replay.queue(t, LAST_NUMBERED).map((task, place) => [task, place + 1]));
    return {
      scene, version: scene.version, replay, t, ran, unreal, queuePlaces, breakpoints, matches,
      fades: matches !== null && state.searching,
      byCreation: state.byCreation,
      cardBreakpoints: this.cardBreakpoints,
      marks: recomputeMarks(replay),
      cardMarks: this.cardMarks,
      counts: this.counts as BoxCounts,
      ringed: ringed >= 0 && scene.shows(ringed) ? ringed : -1,
      hovered: hoveredWire ? [task[edge], next[edge]] : hoveredTask === null ? [] : [hoveredTask],
      hoveredWire,
      cardMatches: this.cardMatches,
      reach: this.reach,
      wireReach: this.wireReach,
      cardReach: this.cardReach,
      grouping: this.groupingIn(scene),
      layers: state.layers,
      courseOf: (box) => this.courseOf(scene, box),
    };
  }

  private choose(scene: Scene): void {
    const { replay, state: { t, selected, layers } } = this.store;
    const { tree } = scene;
    if (!tree.layersOf.size) return;
    if (this.choice?.replay !== replay || this.choice.tree !== tree) this.choice = new LayerChoice(tree, replay);
    scene.show(this.choice.at(t, selected, layers));
  }

  private courseOf(scene: Scene, box: Box): Course | null {
    return this.choice && box.layers && this.choice.course(box.layers, scene.choice);
  }

  private groupingIn(scene: Scene): Grouping | null {
    const { outlines, litGroup: lit, state: { groups } } = this.store;
    const was = this.grouping;
    if (groups === "off" || !outlines) this.grouping = null;
    else if (!was || was.scene !== scene || was.version !== scene.version || was.outlines !== outlines || was.direction !== groups || was.lit !== lit) {
      this.grouping = new Grouping(scene, outlines, groups, lit);
    }
    return this.grouping;
  }

  private refresh(scene: Scene): void {
    const { replay, state, graph } = this.store;
    const moved = scene !== this.scene || scene.version !== this.version;
    const task = reachedFrom(state);
    if (scene !== this.scene || this.counts?.replay !== replay) this.counts = new BoxCounts(scene, replay);
    if (moved || this.markedFor !== replay) {
      this.cardMarks = cardsMarked(recomputeMarks(replay), scene);
      this.markedFor = replay;
    }
    if (moved || state.matches !== this.matches) {
      this.cardMatches = state.matches && matchesOf(state.matches, scene);
    }
    if (moved || task !== (this.reach?.task ?? null)) {
      if (task !== (this.reach?.task ?? null)) this.reach = task === null ? null : reachOf(graph, task);
      this.wireReach = this.reach && wiresOf(this.reach, scene);
      this.cardReach = this.reach && cardsOf(this.reach, scene);
    }
    if (moved || state.marks !== this.marks) this.cardBreakpoints = cardsWith(state.marks, scene);
    this.marks = state.marks;
    this.scene = scene;
    this.version = scene.version;
    this.matches = state.matches;
  }
}

/** Return the closed boxes that contain a breakpoint. */
function cardsWith(marks: Marks, scene: Scene): Map<PlacedBox, boolean> {
  const found = new Map<PlacedBox, boolean>();
  for (const [task, enabled] of marks) {
    const card = scene.cardAround(task);
    if (card) found.set(card, enabled || found.get(card) === true);
  }
  return found;
}

/** Return the marks of the tasks in each closed box. */
function cardsMarked(marks: RecomputeMarks, scene: Scene): Map<number, Mark[]> {
  const found = new Map<number, Mark[]>();
  for (const [task, mark] of marks) {
    const card = scene.spotOf[task] < 0 ? scene.cardOf[task] : -1;
    if (card >= 0) found.set(card, [...(found.get(card) ?? []), mark]);
  }
  return found;
}

/** Return whether one of a spot's breakpoints is enabled; undefined if it has none. */
export function breakpointOf({ breakpoints }: Facts, { tasks }: Spot): boolean | undefined {
  let found: boolean | undefined;
  for (const task of breakpoints.size ? tasks : []) {
    const mark = breakpoints.get(task);
    if (mark !== undefined) found = mark || found === true;
  }
  return found;
}

/** Return the state of a spot; if it represents several tasks, their combined state. */
export function stateOf(facts: Facts, { task, tasks }: Spot): ShownState {
  const { replay, t, ran } = facts;
  if (tasks.length === 1) return orFailed(facts, replay.shownState(task, t, ran));
  const states = new Set(tasks.map((each) => replay.shownState(each, t, ran)));
  if (states.has("running")) return orFailed(facts, "running");
  const [first] = states;
  if (states.size === 1) return first;
  if (!states.has("waiting") && !states.has("ready")) return "planned"; // the others are done
  return "ready";
}

/** Return how many tasks of a closed box are in each state; `card` is an index in the layout's boxes. */
export function countOf(facts: Facts, card: number): BoxCount {
  const count = facts.counts.at(card, facts.t, facts.ran);
  return { ...count, state: orFailed(facts, count.state) };
}

/** Return the state, "failed" if the task at the position is not running but has failed. */
function orFailed({ unreal }: Facts, state: ShownState): ShownState {
  return state === "running" && unreal === "failed" ? "failed" : state;
}

/** Return the share of a waiting task's gradients that have arrived. */
export function shareOf({ replay, t, scene }: Facts, task: number): number {
  return replay.arrivedInputs(task, t) / Math.max(1, scene.graph.waits[task]);
}

/** Return the opacity of a task. */
export function opacityOf(facts: Facts, task: number): number {
  return opacity(facts, facts.matches?.[task] === 1, facts.reach?.tasks[task] ?? 0);
}

/** Return the opacity of a closed box. */
export function cardOpacity(facts: Facts, card: number): number {
  return opacity(facts, (facts.cardMatches?.[card] ?? 0) > 0, facts.cardReach?.[card] ?? 0);
}

function opacity({ fades, reach }: Facts, matched: boolean, reached: number): number {
  if ((matched && fades) || (!fades && !reach)) return 1;
  if (reached) return fades ? REACHED_IN_SEARCH : 1;
  return fades ? NO_MATCH : NOT_REACHED;
}
