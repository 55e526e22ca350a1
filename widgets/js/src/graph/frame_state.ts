/** What the drawing must know of the state, at one moment. */

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
import type { Spot } from "./scene_types.ts";

/** How opaque is what neither matches the search, while one is typed, nor lies up- or downstream of what does. */
const NO_MATCH = 0.35;
/** The same while nothing is searched for. */
const NOT_REACHED = 0.38;
/** Up- or downstream of the only task that was found. */
const REACHED_IN_SEARCH = 0.65;

export interface Facts {
  scene: Scene;
  /** Which of equal layers are shown, by the scene's count. */
  version: number;
  replay: Replay;
  t: number;
  /** How many tasks have really run: less than `t` where a plan is looked at. */
  ran: number;
  /** Why the task at the position does not run now; null where it does. */
  unreal: Unreal | null;
  counts: BoxCounts;
  /** The first places of the ready queue, from 1. */
  queuePlaces: ReadonlyMap<number, number>;
  /** The selected task, or else the one that runs: it has the ring. -1 for none. */
  ringed: number;
  hovered: number | null;
  /** By task, and by closed box, whether its breakpoint is enabled. */
  breakpoints: Marks;
  cardBreakpoints: ReadonlyMap<PlacedBox, boolean>;
  /** What the search has found, whether it is still typed or has let go. */
  matches: Uint8Array | null;
  /** Whether what it has not found is faded: while it is typed. */
  fades: boolean;
  cardMatches: Int32Array | null;
  reach: Reach | null;
  /** By wire and by closed box. */
  wireReach: Uint8Array | null;
  cardReach: Uint8Array | null;
  /** What recomputation does, by task and by closed box. */
  marks: RecomputeMarks;
  cardMarks: ReadonlyMap<number, Mark[]>;
  /** The groups that are outlined; null where none are. */
  grouping: Grouping | null;
  /** The layers that were asked for, by box. */
  layers: ReadonlyMap<number, number>;
  /** When the equal layers of a box run. */
  courseOf(box: Box): Course | null;
}

/** Gathers the facts; what only changes with the layout, the search or the selection is kept from before. */
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
    const queuePlaces = new Map(replay.queue(t, LAST_NUMBERED).map((task, place) => [task, place + 1]));
    return {
      scene, version: scene.version, replay, t, ran, unreal, queuePlaces, breakpoints, matches,
      fades: matches !== null && state.searching,
      cardBreakpoints: this.cardBreakpoints,
      marks: recomputeMarks(replay),
      cardMarks: this.cardMarks,
      counts: this.counts as BoxCounts,
      ringed: ringed >= 0 && scene.shows(ringed) ? ringed : -1,
      hovered: hoveredTask,
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

/** The closed boxes with a breakpoint in them. */
function cardsWith(marks: Marks, scene: Scene): Map<PlacedBox, boolean> {
  const found = new Map<PlacedBox, boolean>();
  for (const [task, enabled] of marks) {
    const card = scene.cardAround(task);
    if (card) found.set(card, enabled || found.get(card) === true);
  }
  return found;
}

/** By closed box the marks of the tasks in it. */
function cardsMarked(marks: RecomputeMarks, scene: Scene): Map<number, Mark[]> {
  const found = new Map<number, Mark[]>();
  for (const [task, mark] of marks) {
    const card = scene.spotOf[task] < 0 ? scene.cardOf[task] : -1;
    if (card >= 0) found.set(card, [...(found.get(card) ?? []), mark]);
  }
  return found;
}

/** Of a spot's breakpoints whether one is enabled; undefined where it has none. */
export function breakpointOf({ breakpoints }: Facts, { tasks }: Spot): boolean | undefined {
  let found: boolean | undefined;
  for (const task of breakpoints.size ? tasks : []) {
    const mark = breakpoints.get(task);
    if (mark !== undefined) found = mark || found === true;
  }
  return found;
}

/** The state of a spot: its task's; that of several is theirs together. */
export function stateOf({ replay, t, ran }: Facts, { task, tasks }: Spot): ShownState {
  if (tasks.length === 1) return replay.shownState(task, t, ran);
  const states = new Set(tasks.map((each) => replay.shownState(each, t, ran)));
  if (states.has("running")) return "running";
  const [first] = states;
  if (states.size === 1) return first;
  if (!states.has("waiting") && !states.has("ready")) return "planned"; // the others are done
  return "ready";
}

/** How many tasks of a closed box, by its index in the layout's boxes, are in which state. */
export function countOf({ counts, t, ran }: Facts, card: number): BoxCount {
  return counts.at(card, t, ran);
}

/** The share of a waiting task's gradients that are here. */
export function shareOf({ replay, t, scene }: Facts, task: number): number {
  return replay.arrivedInputs(task, t) / Math.max(1, scene.graph.waits[task]);
}

/** How opaque a task is drawn. */
export function opacityOf(facts: Facts, task: number): number {
  return opacity(facts, facts.matches?.[task] === 1, facts.reach?.tasks[task] ?? 0);
}

/** How opaque a closed box is drawn. */
export function cardOpacity(facts: Facts, card: number): number {
  return opacity(facts, (facts.cardMatches?.[card] ?? 0) > 0, facts.cardReach?.[card] ?? 0);
}

function opacity({ fades, reach }: Facts, matched: boolean, reached: number): number {
  if ((matched && fades) || (!fades && !reach)) return 1;
  if (reached) return fades ? REACHED_IN_SEARCH : 1;
  return fades ? NO_MATCH : NOT_REACHED;
}
