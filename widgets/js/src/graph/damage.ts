/** What of the picture a step changes: playing a large graph redraws that, not 20,000 tasks. */

import type { Rect } from "../layout/placed.ts";
import { wiresAt } from "./draw_wires.ts";
import type { Facts } from "./facts.ts";
import { grown } from "./grid.ts";

/** More tasks at once change too much. */
const MOST_TASKS = 64;
/** Rings, thick outlines and breakpoints reach so far out of a task: pixels of the screen, or of the picture. */
const OVERHANG = 12;
/** From the middle of a row's label to its top and its bottom. */
const ROW_LABEL = { above: 16, height: 44 };

/** "none": the picture is as it was. "all": it must be drawn anew. */
export function damageBetween(before: Facts, after: Facts, scale: number): Rect | "none" | "all" {
  if (!sameButTime(before, after)) return "all";
  if (before.t === after.t && before.ringed === after.ringed) return "none";
  const first = Math.min(before.t, after.t);
  const last = Math.max(before.t, after.t);
  if (last - first > MOST_TASKS) return "all";
  const { scene, replay } = after;
  const rects: Rect[] = [];
  const changed = new Set([...before.queuePlaces.keys(), ...after.queuePlaces.keys()]);
  for (const { ringed } of [before, after]) if (ringed >= 0) changed.add(ringed);
  for (let place = first; place <= last && place < replay.length; place++) {
    const task = replay.schedule.order[place];
    changed.add(task);
    for (const next of nextOf(after, task)) changed.add(next);
    for (const wire of wiresAt(scene, task)) rects.push(scene.wires[wire].bounds);
  }
  for (const task of changed) {
    const rect = scene.rectOf(task);
    if (rect) rects.push(rect);
    const row = scene.rowOf[task];
    if (row >= 0) rects.push(rowLabel(after, row));
  }
  return rects.length ? grown(around(rects), OVERHANG * Math.max(1, 1 / scale)) : "none";
}

function sameButTime(before: Facts, after: Facts): boolean {
  return (
    before.scene === after.scene &&
    before.replay === after.replay &&
    before.matches === after.matches &&
    before.reach === after.reach &&
    before.hovered === after.hovered &&
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

/** The smallest rectangle around all. */
function around(rects: readonly Rect[]): Rect {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const { x, y, width, height } of rects) {
    left = Math.min(left, x);
    top = Math.min(top, y);
    right = Math.max(right, x + width);
    bottom = Math.max(bottom, y + height);
  }
  return { x: left, y: top, width: right - left, height: bottom - top };
}
