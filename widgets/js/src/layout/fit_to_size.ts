/**
 * Which boxes are open at first: all of them, or as many as let the whole picture be read at once. What says least is
 * folded first: chains of views, then modules that hold no other. Where that is not enough all modules are rows, and
 * those are opened again that leave room for the rest, the outermost and largest first.
 */

import { LEAST_AREA, MOST_TRIED } from "../../../../inspector/drawing/layout_constants.json";
import { type Layout } from "./layout_types.ts";
import { layOut, LayoutCache } from "./layout.ts";
import type { Box, Tree } from "./box_tree.ts";

/** Labels of 11 px are read down to this scale. */
export const READABLE = 0.78;
/** The picture is tried at these, the largest first. */
const SCALES = [1, 0.88, READABLE];
/** Columns are as tall as the panel, or lower where it is the width that there is too little of. */
const TALL = [1, 0.6];

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
  const inner = tree.boxes.slice(1);
  const withoutViews = inner.filter(({ kind }) => kind !== "views");
  const branching = withoutViews.filter(({ children, kind }) => {
    return kind === "run" || children.some((child) => typeof child !== "number" && child.kind !== "views");
  });
  for (const boxes of [inner, withoutViews, branching]) {
    const found = fitted(tree, new Set(boxes.map(({ id }) => id)), room);
    if (found) return found;
  }
  return opened(tree, branching, room);
}

/**
 * From all modules as rows on those are opened that leave room for the rest: the outermost first, the larger before. One
 * like several equal ones, which is none of them, says no more than they do: it stays closed where they do.
 */
function opened(tree: Tree, boxes: readonly Box[], room: Room): FirstView {
  let best = fitted(tree, new Set(), room);
  if (!best) return { open: new Set(), tall: room.height / READABLE };
  let tried = 0;
  const refused = new Set<string>();
  for (const box of boxes.toSorted((a, b) => a.depth - b.depth || b.size - a.size)) {
    if (!isSeen(box.parent!, best.open) || refused.has(kindOf(box)) || tried++ >= MOST_TRIED) continue;
    const larger = fitted(tree, new Set([...best.open, box.id]), room);
    if (larger) best = larger;
    else if (box.layers) refused.add(kindOf(box));
  }
  return best;
}

/** Where it is, its name without its number, and its class: `layers. Block`. */
function kindOf({ parent, title, subtitle }: Box): string {
  return [parent!.id, title.split(" – ")[0].replace(/\d+/g, ""), subtitle.split(" ×")[0]].join();
}

/** The view with these boxes open, at the largest scale at which all of it is seen; null where it is none. */
function fitted(tree: Tree, open: Set<number>, room: Room): FirstView | null {
  const cache = new LayoutCache();
  let things = tree.top.things;
  for (const { id, parent, things: inside } of tree.boxes) if (parent && isSeen(tree.boxes[id], open)) things += inside - 1;
  if (things * LEAST_AREA > (room.width * room.height) / READABLE ** 2) return null;
  for (const scale of SCALES) {
    for (const share of TALL) {
      const tall = (share * room.height) / scale;
      if (fits(layOut(tree, open, cache, tall), room, scale)) return { open, tall };
    }
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
