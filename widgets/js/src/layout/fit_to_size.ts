/**
 * Choice of the boxes that are open at first: all of them, or as many as still let the whole picture be read at once.
 * The least informative boxes are closed first: chains of views, then modules without submodules. If that is not
 * enough, all modules are closed, and those are opened again for which there is space, the outermost and largest first.
 */

import { LEAST_AREA, MOST_TRIED } from "../../../../inspector/drawing/layout_constants.json";
import { type Layout } from "./layout_types.ts";
import { layOut, LayoutCache } from "./layout.ts";
import type { Box, Tree } from "./box_tree.ts";

/** Smallest scale at which labels of 11 px are readable. */
export const READABLE = 0.78;
/** Scales to try, the largest first. */
const SCALES = [1, 0.88, READABLE];
/** Heights of columns to try, relative to the panel; lower columns help if the height is not the limit. */
const TALL = [1, 0.6];
/** Longest way up of a wire, from the foot of one column to the top of the next, pixels of the screen. */
export const MOST_RISE = 500;
/** Maximum height of columns in a high panel: between higher ones wires lead up too far to be followed. */
export const LOW = 480;

export interface Room {
  width: number;
  height: number;
}

/** Open boxes, and the maximum height of the picture's columns. */
export interface FirstView {
  open: Set<number>;
  tall: number;
}

/** Return the first view in a panel of this size. If even closed modules do not fit, they stay closed. */
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
 * Open boxes for which there is space, starting with all modules closed: the outermost first, larger ones before
 * smaller ones. A box that resembles several equal ones without belonging to them stays closed if they do, because it
 * shows nothing more than they do.
 */
function opened(tree: Tree, boxes: readonly Box[], room: Room): FirstView {
  let best = fitted(tree, new Set(), room);
  if (!best) return { open: new Set(), tall: Math.min(room.height, LOW) / READABLE };
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

/** Return the parent, the name without its number, and the class of a box: `layers. Block`. */
function kindOf({ parent, title, subtitle }: Box): string {
  return [parent!.id, title.split(" – ")[0].replace(/\d+/g, ""), subtitle.split(" ×")[0]].join();
}

/**
 * Return the view with these boxes open at the largest scale at which the whole picture is visible; null if there is
 * none.
 */
function fitted(tree: Tree, open: Set<number>, room: Room): FirstView | null {
  const cache = new LayoutCache();
  let things = tree.top.things;
  for (const { id, parent, things: inside } of tree.boxes) if (parent && isSeen(tree.boxes[id], open)) things += inside - 1;
  if (things * LEAST_AREA > (room.width * room.height) / READABLE ** 2) return null;
  for (const scale of SCALES) {
    for (const share of TALL) {
      const tall = (share < 1 && room.height > LOW ? LOW : share * room.height) / scale;
      if (fits(layOut(tree, open, cache, tall), room, scale)) return { open, tall };
    }
  }
  return null;
}

function isSeen(box: Box, open: ReadonlySet<number>): boolean {
  for (let each: Box | null = box; each?.parent; each = each.parent) if (!open.has(each.id)) return false;
  return true;
}

function fits({ width, height, rise }: Layout, room: Room, scale: number): boolean {
  return width * scale <= room.width && height * scale <= room.height && rise * scale <= MOST_RISE;
}
