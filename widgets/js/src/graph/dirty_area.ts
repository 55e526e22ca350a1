/** The part of the picture that a step or the pointer changes, so that not all of 20,000 tasks are drawn again. */

import { HEADER } from "../../../../inspector/drawing/layout_constants.json";
import { layersWidth } from "../layout/layers.ts";
import type { Rect } from "../layout/layout_types.ts";
import type { Facts } from "./frame_state.ts";
import { grown } from "./spatial_index.ts";

/** Maximum number of changed tasks; with more, everything is drawn. */
const MOST_TASKS = 64;
/** Distance by which rings, thick outlines and breakpoints exceed a task, pixels of the screen or of the picture. */
const OVERHANG = 12;
/** Distances from the middle of a row's label to its top and its bottom. */
const ROW_LABEL = { above: 16, height: 44 };

/** Return the changed area: "none" if nothing changed, "all" if everything must be drawn. */
export function damageBetween(before: Facts, after: Facts, scale: number): Rect | "none" | "all" {
  if (!sameButTimeAndPointer(before, after)) return "all";
  const run = tasksBetween(after, before.t, after.t);
  const executed = tasksBetween(after, before.ran, after.ran); // these tasks were planned and have run now
  if (run.length > MOST_TASKS || executed.length > MOST_TASKS) return "all";
  const changed = new Set(executed);
  const wired = new Set(run);
  if (before.t !== after.t) {
    for (const { queuePlaces } of [before, after]) for (const task of queuePlaces.keys()) changed.add(task);
    for (const task of run) for (const next of nextOf(after, task)) changed.add(next);
  }
  if (before.ringed !== after.ringed) for (const { ringed } of [before, after]) if (ringed >= 0) changed.add(ringed);
  if (before.hovered.join() !== after.hovered.join()) for (const task of [...before.hovered, ...after.hovered]) wired.add(task);
  const hovered = before.hoveredWire === after.hoveredWire ? [] : [before.hoveredWire, after.hoveredWire];
  const lines = hovered.flatMap((wire) => wire?.bounds ?? []);
  const rects = [...lines, ...rectsOf(after, changed), ...rectsOf(after, wired), ...wiresOf(after, wired)];
  if (before.t !== after.t || before.ran !== after.ran) rects.push(...buttonsOf(after));
  return rects.length ? grown(around(rects), OVERHANG * Math.max(1, 1 / scale)) : "none";
}

/** Return the tasks at the places between two positions, inclusive; empty if the positions are equal. */
function tasksBetween({ replay }: Facts, one: number, other: number): number[] {
  return one === other ? [] : replay.schedule.order.slice(Math.min(one, other), Math.max(one, other) + 1);
}

/** Return the rectangles of tasks, or of the closed boxes around them, and of their rows' labels. */
function rectsOf(facts: Facts, tasks: Iterable<number>): Rect[] {
  const { scene } = facts;
  const rects: Rect[] = [];
  for (const task of tasks) {
    const rect = scene.rectOf(task);
    if (rect) rects.push(rect);
    const row = scene.rowOf[task];
    if (row >= 0) rects.push(rowLabel(facts, row));
  }
  return rects;
}

/** Return the buttons of equal layers, which show the running layer and the finished ones. */
function buttonsOf({ scene }: Facts): Rect[] {
  return scene.layout.boxes.flatMap(({ box, rect, closed, layersAt }) => {
    if (!box.layers || closed) return [];
    return [{ x: rect.x + layersAt, y: rect.y, width: layersWidth(box.layers.count), height: HEADER }];
  });
}

function wiresOf({ scene }: Facts, tasks: Iterable<number>): Rect[] {
  return [...tasks].flatMap((task) => [...scene.wiresAt(task)].map((wire) => scene.wires[wire].bounds));
}

function sameButTimeAndPointer(before: Facts, after: Facts): boolean {
  return (
    before.scene === after.scene &&
    before.version === after.version &&
    before.layers === after.layers &&
    before.replay === after.replay &&
    before.unreal === after.unreal &&
    before.matches === after.matches &&
    before.fades === after.fades &&
    before.byCreation === after.byCreation &&
    before.reach === after.reach &&
    before.grouping === after.grouping &&
    before.breakpoints === after.breakpoints
  );
}

function nextOf({ scene }: Facts, task: number): number[] {
  const { outEdges, document } = scene.graph;
  const edges = outEdges.values.subarray(outEdges.starts[task], outEdges.starts[task + 1]);
  return Array.from(edges, (edge) => document.edges.next[edge]);
}

function rowLabel({ scene }: Facts, row: number): Rect {
  const { rect } = scene.layout.rows[row];
  const width = scene.rowRooms[row];
  return { x: rect.x + rect.width - width, y: rect.y - ROW_LABEL.above, width, height: ROW_LABEL.height };
}

/** Return the smallest rectangle around all. */
export function around(rects: readonly Rect[]): Rect {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const { x, y, width, height } of rects) {
    left = Math.min(left, x);
    top = Math.min(top, y);
    right = Math.max(right, x + width);
    bottom = Math.max(bottom, y + height);
  }
  return { x: left, y: top, width: right - left, height: bottom - top };
}
