/**
 * The timeline: phases, device activity, memory including the forward, and lifetimes, on one axis with one cursor and
 * one playhead. It is also the deck's slider.
 */

import { barsOf } from "../charts/lifetimes.ts";
import { paint } from "../charts/paint_timeline.ts";
import { drawCursor, drawMarks, drawPlayhead, drawRuler, drawRunning } from "../charts/ruler.ts";
import { drawRing, type Stack, stackPaths } from "../charts/memory_stack.ts";
import type { LifetimeBars, Picture } from "../charts/timeline_picture.ts";
import { fit } from "../canvas.ts";
import { el } from "../dom.ts";
import { Axis } from "../model/axis.ts";
import { type Bands, bandsOf, HEADING } from "../model/timeline_rows.ts";
import { type Times, timesOf } from "../model/task_times.ts";
import { curvesOf, levelsOfCurve } from "../model/recompute_curves.ts";
import { CATEGORIES, type Phase } from "../model/document.ts";
import { type Lane, lanesOf } from "../model/device_lanes.ts";
import { levelsOfMemory, type MemoryLevels } from "../model/memory.ts";
import { type Replay, whatAndWhere } from "../model/replay.ts";
import { when } from "../model/task_timing_words.ts";
import { hasMoved, type Store } from "../store.ts";
import { count } from "../format.ts";
import type { Colours, MakeView, Stage } from "../view_types.ts";
import { dashes } from "./policy_line_styles.ts";
import { makeLegend, TIGHT_ROW } from "./memory_legend.ts";
import { makePredict } from "./predict.ts";
import { busyWords, TimelineLabels } from "./timeline_labels.ts";
import { bindTimeline } from "./timeline_pointer.ts";

/** Inputs of the picture, which is drawn again if one of them changes. */
interface Subject {
  replay: Replay;
  times: Times | null;
  /** Description of how busy each device is; "" without a recorded clock. */
  busy: string;
  /** True once a task's duration is known, so that there is a clock axis. */
  isTimed: boolean;
  memories: unknown[];
  axis: Store["state"]["axis"];
  zoom: Store["state"]["zoom"];
  ownScale: boolean;
  areOpen: boolean | null;
  colours: Colours;
  width: number;
  height: number;
  ratio: number;
}

/** Width below which lifetimes are hidden until requested. */
const NARROW = 560;

/** State fields that change the picture, besides moves. */
const DRAWN_AFTER = ["hoveredTime", "marks", "matches", "axis", "zoom", "ownScale", "isFull"] as const;

export const makeTimeline: MakeView = (stage, parent) => {
  const { store } = stage;
  const still = el("div", { class: "still", "aria-hidden": "true" });
  const canvas = el("canvas", { class: "moving", role: "img" });
  const slider = el("input", { type: "range", class: "position", min: "0", step: "1", "aria-label": "position in the run" });
  const legend = makeLegend();
  const labels = new TimelineLabels(stage, legend, () => {
    areOpen = !picture?.bands.lifetimes.rows;
    stage.redraw(view);
  });
  const element = el("section", { class: "time", "aria-label": "timeline" }, still, slider, canvas, ...labels.elements);
  parent.append(element);
  const predict = makePredict(stage, labels.note);

  let areOpen: boolean | null = null;
  let subject: Subject | null = null;
  let picture: Picture | null = null;
  let solid: HTMLCanvasElement | null = null;
  let clocked: { replay: Replay; revision: number; times: Times | null; lanes: Lane[] } | null = null;
  slider.addEventListener("input", () => {
    store.update({ playing: false });
    store.go(Number(slider.value));
  });
  const unbind = bindTimeline(element, slider, stage, () => picture);
  // Reading the size in each frame would force a layout each time.
  const size = { width: 0, height: 0 };
  const resize = new ResizeObserver(() => {
    Object.assign(size, { width: element.clientWidth, height: element.clientHeight });
    stage.redraw(view);
  });
  resize.observe(element);

  const clock = () => {
    const { replay, state, document } = store;
    if (clocked?.replay !== replay || clocked.revision !== state.revision) {
      const times = timesOf(document, replay);
      clocked = { replay, revision: state.revision, times, lanes: lanesOf(replay, times) };
    }
    return clocked;
  };
  const rebuild = (wanted: Subject): void => {
    subject = wanted;
    const { lanes, times } = clock();
    const stack = stackOf(store);
    const categories = stack ? usedCategories(store, stack) : [];
    const lines = labels.peakLines;
    picture = pictureOf(stage, wanted, lanes, times, margins(element), categories.length * TIGHT_ROW, lines);
    const { memory } = picture.bands;
    legend.build(categories, stack?.curves ?? [], memory.bottom - memory.top - HEADING);
    labels.place(picture, stack);
    if (labels.peakLines !== lines) return rebuild(wanted); // the sentence's height depends only on the width
    still.replaceChildren(paint(el("canvas"), picture, false));
    solid = paint(el("canvas"), picture, true);
    read();
  };
  const read = () => {
    const stack = stackOf(store);
    if (stack) legend.read(stack.shown, stack.forward, store.state.hoveredTime ?? store.state.t);
  };
  const view: ReturnType<MakeView> = {
    update(changed) {
      predict.update(changed);
      if (changed.has("axis")) stage.tip(null); // it names the task that was at this point
      if (changed.has("tab") || changed.has("revision")) slider.max = String(store.replay.length);
      if (hasMoved(changed)) {
        slider.value = String(store.state.t);
        slider.setAttribute("aria-valuetext", positionWords(store));
      }
      if (hasMoved(changed) || changed.has("hoveredTime")) read();
      labels.update(changed);
      return hasMoved(changed) || DRAWN_AFTER.some((name) => changed.has(name));
    },
    draw() {
      const wanted = subjectOf(stage, size, clock(), areOpen);
      if (!wanted.width || !wanted.height) return false;
      if (!isSame(subject, wanted)) {
        rebuild(wanted);
        canvas.setAttribute("aria-label", labels.words);
      }
      drawMoving(fit(canvas, wanted.width, wanted.height), store, picture!, solid!);
      return false;
    },
    dispose() {
      resize.disconnect();
      unbind();
      element.remove();
    },
  };
  return view;
};

/** Return `runs 53rd of 244, TBackward0, blocks.1.f2`. */
function positionWords(store: Store): string {
  const { running, graph, replay, unreal, state } = store;
  if (running < 0) return `${unreal ? `${unreal}, ` : ""}the end, after ${count(replay.length, "task")}`;
  const stands = when(replay, running, state.t, store.ran, unreal).join("");
  return `${stands}, ${whatAndWhere(graph, running)}`;
}

function subjectOf(
  { store, colours }: Stage,
  size: { width: number; height: number },
  { times, lanes }: { times: Times | null; lanes: Lane[] },
  areOpen: boolean | null,
): Subject {
  const { axis, zoom, ownScale } = store.state;
  return {
    replay: store.replay,
    times: axis === "clock" ? times : null,
    busy: lanes.map(busyWords).join(),
    isTimed: times !== null,
    memories: [...store.schedules.map((each) => each.memory), store.replay.schedule.curves],
    axis,
    zoom,
    ownScale,
    areOpen,
    colours,
    ...size,
    ratio: devicePixelRatio,
  };
}

function isSame(one: Subject | null, other: Subject): boolean {
  if (!one || one.memories.length !== other.memories.length) return false;
  const { memories, ...rest } = other;
  const isEqual = (Object.keys(rest) as (keyof typeof rest)[]).every((key) => one[key] === other[key]);
  return isEqual && memories.every((memory, index) => memory === one.memories[index]);
}

/** Return the gutters that the style sheet defines for this width. */
function margins(element: HTMLElement): { left: number; right: number } {
  const style = getComputedStyle(element);
  const gutter = (name: string) => Number.parseFloat(style.getPropertyValue(name)) || 0;
  return { left: gutter("--gl"), right: gutter("--gr") };
}

function pictureOf(
  { store, colours }: Stage,
  { zoom, width, height, areOpen }: Subject,
  lanes: Lane[],
  times: Times | null,
  gutters: { left: number; right: number },
  legend: number,
  peakLines: number,
): Picture {
  const { document, replay, state, memory } = store;
  const forward = forwardOf(store);
  const axis = new Axis({
    kind: state.axis,
    left: gutters.left,
    right: width - gutters.right,
    places: replay.length,
    phases: store.isSimulated ? document.phases.map((phase) => simulated(phase, lanes, times)) : document.phases,
    times,
    forward: forward?.memory.forward_ns ?? [],
    zoom,
  });
  const levels = memory && levelsOfMemory(memory);
  const isOpen = areOpen ?? (width < NARROW ? false : null);
  const bands: Bands = bandsOf(height, lanes.length, memory?.rows.length ?? 0, isOpen, legend, peakLines);
  const rows = memory?.rows.slice(0, bands.lifetimes.rows) ?? [];
  const lifetimes: LifetimeBars[] = levels ? rows.map((row) => barsOf(levels, row)) : [];
  const stack = stackOf(store);
  const paths = stack && stackPaths(axis, bands, stack);
  const births = forward?.memory.events.slice(0, forward.forwardEvents).filter((event) => event >= 0).length ?? 0;
  return { axis, bands, width, height, colours, times, lanes, stack: paths, lifetimes, forward: births };
}

/** Return the backward without the measured time, which is of another order; only several devices give it another one. */
function simulated(phase: Phase, lanes: Lane[], times: Times | null): Phase {
  if (phase.name !== "backward") return phase;
  return { ...phase, elapsed_ns: lanes.length > 1 && times?.isWhole ? times.total : null };
}

/** Return the memory that includes the forward, which is the same for all orders of the backward. */
function forwardOf(store: Store): MemoryLevels | null {
  const found = [store.memory, ...store.schedules.map(({ memory }) => memory)].find(
    (memory) => memory && levelsOfMemory(memory).forwardEvents,
  );
  return found ? levelsOfMemory(found) : null;
}

function stackOf(store: Store): Stack | null {
  const { memory, schedules, state } = store;
  if (!memory) return null;
  const patterns = dashes(schedules.map((each) => each.policy));
  const others = schedules.flatMap((each, tab) =>
    each.memory && tab !== state.tab
      ? [{ levels: levelsOfMemory(each.memory), dash: patterns[tab], times: () => timesOf(store.document, store.replayOf(tab)) }]
      : [],
  );
  const curves = curvesOf(store.replay.schedule).map(levelsOfCurve);
  return { shown: levelsOfMemory(memory), forward: forwardOf(store), others, curves, ownScale: state.ownScale };
}

/** Return the categories that have bytes under any policy. */
function usedCategories(store: Store, { forward }: Stack): number[] {
  const all = store.schedules.flatMap(({ memory }) => (memory ? [levelsOfMemory(memory)] : []));
  const before = forward?.forwardLevels ?? [];
  const isUsed = (category: number) =>
    all.some((levels) => levels.used[category]) || before.some((bytes) => bytes[category] > 0);
  return CATEGORIES.flatMap((_, category) => (isUsed(category) ? [category] : []));
}

/** Draw the parts that change from frame to frame over the static picture. */
function drawMoving(context: CanvasRenderingContext2D, store: Store, picture: Picture, solid: HTMLCanvasElement): void {
  const { axis, height, stack } = picture;
  const { t, hoveredTime } = store.state;
  const ran = Math.min(executedUntil(store), axis.places);
  drawSolid(context, solid, ran ? Math.min(ran < axis.places ? axis.x(ran) : Infinity, axis.right) : axis.backward.left - 1, height);
  drawRunning(context, picture, store);
  if (stack && store.memory) drawRing(context, picture, stack, levelsOfMemory(store.memory).peak);
  drawMarks(context, picture, store);
  drawPlayhead(context, picture, Math.min(t, axis.places));
  drawRuler(context, picture, Math.min(t, axis.places));
  if (hoveredTime !== null) drawCursor(context, picture, hoveredTime);
}

/** Return the time up to which tasks have run: the front of a live session or of a branch; otherwise the position. */
function executedUntil(store: Store): number {
  return store.isLive || store.branch ? store.reached : store.ran;
}

/** Draw the executed part up to a pixel, always including the forward. */
function drawSolid(context: CanvasRenderingContext2D, solid: HTMLCanvasElement, until: number, height: number): void {
  const across = Math.min(solid.width, Math.round(until * devicePixelRatio));
  if (across < 1 || !solid.height) return;
  context.drawImage(solid, 0, 0, across, solid.height, 0, 0, across / devicePixelRatio, height);
}
