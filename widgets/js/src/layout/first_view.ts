/**
 * Which boxes are open at first: all of them, or as many as let the whole picture be read at once. What says least is
 * folded first: chains of views, then modules that hold no other, then modules from the innermost outwards.
 */

import { type Layout } from "./placed.ts";
import { layOut, LayoutCache } from "./layout.ts";
import type { Box, Tree } from "./tree.ts";

/** Labels of 11 px are read down to this scale. */
export const READABLE = 0.78;
/** The picture is tried at these, the largest first. */
const SCALES = [1, 0.88, READABLE];
/** A thing takes so much room at least, pixels: of more than there is room for no layout is tried. */
const LEAST_AREA = 26 * 52;
/** The place among the foldings of that in which modules that hold no other are rows: all of them, or none. */
const LEAVES = 2;
/** So many boxes that were folded together are tried one by one. */
const MOST_TRIED = 12;

export interface Room {
  width: number;
  height: number;
}

/** The open boxes, and how tall the columns of the picture are to be. */
export interface FirstView {
  open: Set<number>;
  tall: number;
}

/** What is seen at first in a panel of so many pixels. Where even all modules as rows do not fit, that is what it is. */
export function firstView(tree: Tree, room: Room): FirstView {
  const levels = foldings(tree);
  for (const [level, open] of levels.entries()) {
    const found = fitted(tree, open, room);
    if (found) return level > LEAVES ? opened(tree, found, levels[level - 1], room) : found;
  }
  const scale = READABLE;
  return { open: levels[levels.length - 1], tall: room.height / scale };
}

/** Less and less open: all boxes, without views, without modules that hold no other, without those of each depth. */
function foldings(tree: Tree): Set<number>[] {
  const inner = tree.boxes.slice(1);
  const ids = (boxes: readonly Box[]) => new Set(boxes.map(({ id }) => id));
  const withoutViews = inner.filter(({ kind }) => kind !== "views");
  const branching = withoutViews.filter(({ children, kind }) => {
    return kind === "run" || children.some((child) => typeof child !== "number" && child.kind !== "views");
  });
  const deepest = branching.reduce((most, { depth }) => Math.max(most, depth), 0);
  const levels = [ids(inner), ids(withoutViews), ids(branching)];
  for (let depth = deepest; depth > 0; depth--) levels.push(ids(branching.filter((box) => box.depth < depth)));
  return levels;
}

/** The view with these boxes open, at the largest scale at which all of it is seen; null where it is none. */
function fitted(tree: Tree, open: Set<number>, room: Room): FirstView | null {
  const cache = new LayoutCache();
  let things = tree.top.things;
  for (const { id, parent, things: inside } of tree.boxes) if (parent && isSeen(tree.boxes[id], open)) things += inside - 1;
  if (things * LEAST_AREA > (room.width * room.height) / READABLE ** 2) return null;
  for (const scale of SCALES) {
    const tall = room.height / scale;
    if (fits(layOut(tree, open, cache, tall), room, scale)) return { open, tall };
  }
  return null;
}

function isSeen(box: Box, open: ReadonlySet<number>): boolean {
  for (let each: Box | null = box; each?.parent; each = each.parent) if (!open.has(each.id)) return false;
  return true;
}

function fits({ width, height }: Layout, room: Room, scale: number): boolean {
  return width * scale <= room.width && height * scale <= room.height;
}

/** Some of the boxes that were folded last are open again, where there is still room for them. */
function opened(tree: Tree, found: FirstView, before: ReadonlySet<number>, room: Room): FirstView {
  const folded = [...before].filter((id) => !found.open.has(id) && isSeen(tree.boxes[id], new Set([...found.open, id])));
  let best = found;
  for (const id of folded.sort((a, b) => tree.boxes[b].things - tree.boxes[a].things).slice(0, MOST_TRIED)) {
    best = fitted(tree, new Set([...best.open, id]), room) ?? best;
  }
  return best;
}
