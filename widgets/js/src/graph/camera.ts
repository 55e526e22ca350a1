/** Positions of the camera. A view maps a point of the picture to the screen: the point times `k`, plus (x, y). */

import { MOST_RISE, READABLE } from "../layout/fit_to_size.ts";
import type { PlacedBox, Rect, Size } from "../layout/layout_types.ts";
import type { Scene } from "./scene.ts";

export interface CameraView {
  x: number;
  y: number;
  k: number;
}

/** Free space around the whole picture, pixels of the screen. */
const MARGIN = { x: 12, y: 10 };
const LARGEST_FIT = 1.1;
export const LARGEST_SCALE = 3;
/**
 * Scale at which a picture of rows of chips is shown completely instead of following tasks; labels need a larger one.
 */
const READABLE_CHIPS = 0.5;
const FOLLOW_SCALES = { least: 0.92, most: 1 };
/**
 * Screen position, relative, to which a followed task is moved after it left the middle; more space remains below and
 * to the right.
 */
const ANCHOR = 0.3;
const MIDDLE = { from: 0.15, to: 0.85 };
/** Screen position of the followed task at first, relative. */
const FIRST = { x: 0.42, y: 0.45 };
/** Maximum share of the screen's width by which a box may be cut off at first and still be moved into view. */
const LITTLE = 0.3;

/** Return the space for the picture in a panel of this size. */
export function roomIn({ width, height }: Size): Size {
  return { width: width - 2 * MARGIN.x, height: height - 2 * MARGIN.y };
}

/** Return the visible part of the picture. */
export function areaOf(view: CameraView, size: Size): Rect {
  return { x: -view.x / view.k, y: -view.y / view.k, width: size.width / view.k, height: size.height / view.k };
}

/** Return the view of the whole picture, in which no wire leads up further than `MOST_RISE`. */
export function fitView(picture: Size & { rise?: number }, size: Size): CameraView {
  const k = Math.min(
    (size.width - 2 * MARGIN.x) / picture.width,
    (size.height - 2 * MARGIN.y) / picture.height,
    LARGEST_FIT,
    MOST_RISE / (picture.rise ?? 0),
  );
  const scale = Math.max(k, 1e-4);
  return {
    k: scale,
    x: (size.width - picture.width * scale) / 2,
    y: (size.height - picture.height * scale) / 2,
  };
}

/** Return whether the whole picture is readable on the screen. */
export function fitsReadably(scene: Scene, size: Size): boolean {
  return fitView(scene.layout, size).k >= (scene.layout.rows.length ? READABLE_CHIPS : READABLE);
}

/**
 * Return a view that keeps a task visible. It moves only if the task is outside of the middle 70 % of the screen; then
 * it shows the largest box around the task that fits. `from` is the current view; null at first.
 */
export function followView(scene: Scene, size: Size, from: CameraView | null, task: number): CameraView | null {
  const { layout } = scene;
  if (fitsReadably(scene, size)) return fitView(layout, size);
  const rect = scene.rectOf(task);
  if (!rect) return from;
  const fit = fitView(layout, size).k;
  const k = Math.max(FOLLOW_SCALES.least, Math.min(FOLLOW_SCALES.most, fit));
  const x = rect.x + rect.width / 2;
  const y = rect.y + rect.height / 2;
  if (from && from.k === k && inMiddle(from, size, x, y)) return from;
  const around = scene.boxesAround(x, y).find((box) => isWithin(box, size, k));
  const keeps = from !== null && from.k === k;
  const view = {
    k,
    x: placed(x, size.width, layout.width, k, keeps ? from.x : null, FIRST.x, around && [around.rect.x, around.rect.width]),
    y: placed(y, size.height, layout.height, k, keeps ? from.y : null, FIRST.y, around && [around.rect.y, around.rect.height]),
  };
  const whole = { ...view, x: view.x + cutAtLeft(scene, size, view) };
  return keeps || x * k + whole.x > size.width * MIDDLE.to ? view : whole;
}

/** Return by how many screen pixels the outermost visible boxes are cut off at the left, if only slightly. */
function cutAtLeft(scene: Scene, size: Size, view: CameraView): number {
  let most = 0;
  for (const { rect, depth } of scene.layout.boxes) {
    const [left, top] = [rect.x * view.k + view.x, rect.y * view.k + view.y];
    const seen = left + rect.width * view.k > 0 && top < size.height && top + rect.height * view.k > 0;
    if (depth === 1 && seen && left < MARGIN.x && left > -size.width * LITTLE) most = Math.max(most, MARGIN.x - left);
  }
  return most;
}

function inMiddle(view: CameraView, size: Size, x: number, y: number): boolean {
  const across = (x * view.k + view.x) / size.width;
  const down = (y * view.k + view.y) / size.height;
  return across >= MIDDLE.from && across <= MIDDLE.to && down >= MIDDLE.from && down <= MIDDLE.to;
}

function isWithin({ rect }: PlacedBox, size: Size, k: number): boolean {
  return rect.width * k + 2 * MARGIN.x <= size.width && rect.height * k + 2 * MARGIN.y <= size.height;
}

/** Return one coordinate of a view that fills the screen with the picture if possible. `box`: start and length. */
function placed(
  point: number,
  screen: number,
  picture: number,
  k: number,
  from: number | null,
  first: number,
  box: number[] | undefined,
): number {
  if (picture * k <= screen) return (screen - picture * k) / 2;
  let at = from ?? screen * first - point * k;
  const share = (point * k + at) / screen;
  if (share < MIDDLE.from || share > MIDDLE.to) at = screen * ANCHOR - point * k;
  if (box) at = screen / 2 - (box[0] + box[1] / 2) * k;
  return Math.max(screen - picture * k - MARGIN.x, Math.min(MARGIN.x, at));
}

/** Return the view that shows a rectangle, moved as little as possible; if it moves, a margin is left free. */
export function reveal(view: CameraView, size: Size, rect: Rect): CameraView {
  const room = 24;
  return {
    k: view.k,
    x: view.x + shift(rect.x * view.k + view.x, rect.width * view.k, size.width, room),
    y: view.y + shift(rect.y * view.k + view.y, rect.height * view.k, size.height, room),
  };
}

function shift(start: number, length: number, screen: number, room: number): number {
  if (start >= 0 && start + length <= screen) return 0;
  if (start < room) return room - start;
  if (start + length > screen - room) return Math.max(room - start, screen - room - start - length);
  return 0;
}

/** Return the view with a rectangle in its middle. */
export function centred({ k }: CameraView, size: Size, { x, y, width, height }: Rect): CameraView {
  return { k, x: size.width / 2 - (x + width / 2) * k, y: size.height / 2 - (y + height / 2) * k };
}

/** Return the view at another scale; the point (x, y) of the screen stays in place. */
export function scaledAbout(view: CameraView, k: number, x: number, y: number): CameraView {
  const ratio = k / view.k;
  return { k, x: x - (x - view.x) * ratio, y: y - (y - view.y) * ratio };
}

/** Return the view that shows `to` where `from` was, which keeps a box in place when it opens. */
export function kept(view: CameraView, from: Rect, to: Rect): CameraView {
  return { k: view.k, x: view.x + (from.x - to.x) * view.k, y: view.y + (from.y - to.y) * view.k };
}

export function sameView(one: CameraView, other: CameraView): boolean {
  return one.x === other.x && one.y === other.y && one.k === other.k;
}
