/** Properties of every layout: nothing overlaps, boxes contain their content, wires cross no other items. */

import assert from "node:assert/strict";
import type { Layout, PlacedWire, Rect } from "../src/layout/layout_types.ts";
import type { Box, Tree } from "../src/layout/box_tree.ts";

const TOLERANCE = 0.4;

/** A small item. `stands` are the tasks it represents, with closed boxes as `~id`. */
interface Small {
  kind: string;
  stands: Set<number>;
  rect: Rect;
}

export function checkGeometry(tree: Tree, layout: Layout): void {
  const page = { x: 0, y: 0, width: layout.width, height: layout.height };
  const small = smallThings(layout);
  for (const { kind, stands, rect } of small) {
    for (const value of Object.values(rect)) assert(Number.isFinite(value));
    assert(isInside(rect, page), `${kind} ${[...stands]} is out of the picture`);
  }
  checkOverlaps(small);
  checkBoxes(tree, layout, small);
  for (const wire of layout.wires) checkWire(tree, layout, wire, small);
}

/** Check that every visible task has one place; all others are in a closed box, or beside their user. */
export function checkTasks(tree: Tree, open: ReadonlySet<number>, layout: Layout): void {
  const placed = [...layout.tasks.map(({ task }) => task), ...layout.pills.flatMap(({ tasks }) => tasks)];
  const expected = Array.from(tree.boxOf.keys()).filter((task) => isDrawn(tree, task) && !closedBox(tree, open, task));
  assert.deepEqual(
    placed.sort((a, b) => a - b),
    expected,
  );
  const closed = new Set(
    expected.length < tree.boxOf.length ? Array.from(tree.boxOf.keys(), (task) => closedBox(tree, open, task)?.id) : [],
  );
  closed.delete(undefined);
  assert.deepEqual(new Set(layout.boxes.filter((box) => box.closed).map(({ box }) => box.id)), closed);
}

/** Check that every edge is in one wire, unless it is in a closed box or leads from there to a parameter. */
export function checkEdges(tree: Tree, open: ReadonlySet<number>, layout: Layout): void {
  const drawn = new Map<number, number>();
  for (const wire of layout.wires) for (const edge of wire.edges) drawn.set(edge, (drawn.get(edge) ?? 0) + 1);
  const stubbed = new Set(layout.stubs.filter(({ kind }) => kind === "to").map(({ task }) => task));
  const { task: from, next: to } = tree.graph.document.edges;
  from.forEach((task, edge) => {
    if (!isDrawn(tree, task) || !isDrawn(tree, to[edge])) return;
    const source = closedBox(tree, open, task);
    const target = closedBox(tree, open, to[edge]);
    const hidden = source && (source === target || tree.pills[to[edge]]);
    const times = drawn.get(edge) ?? 0;
    if (hidden || task === to[edge]) assert.equal(times, 0);
    else if (times === 2) assert(stubbed.size, `edge ${edge} is drawn twice, but has no stubs`);
    else assert.equal(times, 1, `edge ${edge} of task ${task} to ${to[edge]} is drawn ${times} times`);
  });
}

/** Return whether a task is drawn itself, not its counterpart in another of equal layers. */
function isDrawn(tree: Tree, task: number): boolean {
  return tree.standIn[task] === task;
}

/** Return the outermost closed box around a task. */
function closedBox(tree: Tree, open: ReadonlySet<number>, task: number): Box | null {
  let found: Box | null = null;
  for (let box: Box | null = tree.boxes[tree.boxOf[task]]; box?.parent; box = box.parent) {
    if (!open.has(box.id)) found = box;
  }
  return found;
}

function smallThings({ tasks, pills, stubs, rows, boxes }: Layout): Small[] {
  return [
    ...tasks.map(({ task, rect }) => ({ kind: "task", stands: new Set([task]), rect })),
    ...pills.map(({ tasks, user, rect }) => ({ kind: "pill", stands: new Set([...tasks, user]), rect })),
    ...stubs.map(({ task, others, rect }) => ({ kind: "stub", stands: new Set([task, ...others]), rect })),
    ...rows.map(({ tasks, rect }) => ({ kind: "row", stands: new Set(tasks), rect })),
    ...boxes.filter((box) => box.closed).map(({ box, rect }) => ({ kind: "card", stands: new Set([~box.id]), rect })),
  ];
}

function checkOverlaps(small: readonly Small[]): void {
  const sorted = small.toSorted((a, b) => a.rect.x - b.rect.x);
  sorted.forEach((one, index) => {
    for (let next = index + 1; next < sorted.length && sorted[next].rect.x < one.rect.x + one.rect.width; next++) {
      const other = sorted[next];
      assert(
        !overlap(one.rect, other.rect),
        `${one.kind} ${[...one.stands]} overlaps ${other.kind} ${[...other.stands]}`,
      );
    }
  });
}

function checkBoxes(tree: Tree, { boxes }: Layout, small: readonly Small[]): void {
  boxes.forEach(({ box, rect }, index) => {
    for (const other of boxes.slice(index + 1)) {
      const nested = isInside(other.rect, rect) && holds(tree, box, ~other.box.id);
      assert(nested || !overlap(rect, other.rect), `boxes ${box.title} and ${other.box.title} overlap`);
    }
  });
  for (const { box, rect } of boxes.filter((each) => !each.closed)) {
    for (const { kind, stands, rect: inner } of small) {
      const [first] = stands;
      if (kind === "task" || kind === "card") assert.equal(isInside(inner, rect), holds(tree, box, first));
      else assert(isInside(inner, rect) || !overlap(inner, rect), `${kind} is across the edge of ${box.title}`);
    }
  }
}

function holds(tree: Tree, outer: Box, item: number): boolean {
  for (let box = item < 0 ? tree.boxes[~item].parent : tree.boxes[tree.boxOf[item]]; box; box = box.parent) {
    if (box === outer) return true;
  }
  return false;
}

function checkWire(tree: Tree, layout: Layout, { kind, from, to, points }: PlacedWire, small: readonly Small[]): void {
  const ends = [from, to];
  const page = { x: 0, y: 0, width: layout.width, height: layout.height };
  for (let at = 0; at < points.length; at += 2) {
    assert(isInside({ x: points[at], y: points[at + 1], width: 0, height: 0 }, page), "a wire leaves the picture");
  }
  if (!points.length) return;
  const around = boundsOf(points);
  const near = small.filter(({ stands, rect }) => overlap(rect, around) && !ends.some((end) => stands.has(end)));
  const foreign = layout.boxes.filter(({ box, rect, closed }) => {
    return !closed && kind === "gradient" && overlap(rect, around) && !ends.some((end) => holds(tree, box, end));
  });
  if (!near.length && !foreign.length) return;
  for (const segment of segments(points)) {
    for (const { kind, stands, rect } of near) {
      assert(!crosses(segment, rect), `wire ${ends} runs through ${kind} ${[...stands]}`);
    }
    for (const { box, rect } of foreign) {
      assert(!crosses(segment, rect), `wire ${ends} runs through the box ${box.title}`);
    }
  }
}

/** Return a slightly larger rectangle around points, because a wire may be a straight line. */
function boundsOf(points: readonly number[]): Rect {
  let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let at = 0; at < points.length; at += 2) {
    left = Math.min(left, points[at] - 1);
    right = Math.max(right, points[at] + 1);
    top = Math.min(top, points[at + 1] - 1);
    bottom = Math.max(bottom, points[at + 1] + 1);
  }
  return { x: left, y: top, width: right - left, height: bottom - top };
}

type Segment = [x: number, y: number, toX: number, toY: number];

/** Return the wire as it is drawn, with each S-curve of a sideways step in 12 pieces. */
function segments(points: readonly number[]): Segment[] {
  const found: Segment[] = [];
  for (let at = 2; at < points.length; at += 2) {
    const [x, y, toX, toY] = points.slice(at - 2, at + 2);
    if (x === toX || y === toY) {
      found.push([x, y, toX, toY]);
      continue;
    }
    const middle = (y + toY) / 2;
    let last = [x, y];
    for (let step = 1; step <= 12; step++) {
      const t = step / 12;
      const [a, b, c, d] = [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t ** 3];
      const next = [(a + b) * x + (c + d) * toX, a * y + (b + c) * middle + d * toY];
      found.push([last[0], last[1], next[0], next[1]]);
      last = next;
    }
  }
  return found;
}

function overlap(one: Rect, other: Rect): boolean {
  return (
    one.x < other.x + other.width - TOLERANCE &&
    other.x < one.x + one.width - TOLERANCE &&
    one.y < other.y + other.height - TOLERANCE &&
    other.y < one.y + one.height - TOLERANCE
  );
}

function isInside(inner: Rect, outer: Rect): boolean {
  return (
    inner.x >= outer.x - TOLERANCE &&
    inner.y >= outer.y - TOLERANCE &&
    inner.x + inner.width <= outer.x + outer.width + TOLERANCE &&
    inner.y + inner.height <= outer.y + outer.height + TOLERANCE
  );
}

/** Return whether the segment crosses the inside of the rectangle (Liang and Barsky). */
function crosses([x, y, toX, toY]: Segment, rect: Rect): boolean {
  let [enter, leave] = [0, 1];
  for (const [start, step, low, high] of [
    [x, toX - x, rect.x + TOLERANCE, rect.x + rect.width - TOLERANCE],
    [y, toY - y, rect.y + TOLERANCE, rect.y + rect.height - TOLERANCE],
  ]) {
    if (step === 0) {
      if (start <= low || start >= high) return false;
      continue;
    }
    const [near, far] = [(low - start) / step, (high - start) / step];
    enter = Math.max(enter, Math.min(near, far));
    leave = Math.min(leave, Math.max(near, far));
  }
  return enter < leave;
}
