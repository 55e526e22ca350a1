/** Camera movements: immediate when the user drags, scrolls or pinches, and smooth when the deck moves it. */

import { bindDragEnd } from "../views/cancel_drag.ts";
import { type CameraView, LARGEST_SCALE, sameView, scaledAbout } from "./camera.ts";

/** Time in which the camera moves 63 % of the way, milliseconds. */
const TIME_CONSTANT = 70;
/** Distance at which a movement ends: pixels, and relative scale. */
const NEAR = { move: 0.3, scale: 0.001 };
const SMALLEST_SCALE = 0.15;
/** Minimum scale relative to the scale of the whole picture. */
const BELOW_FIT = 0.7;
/**
 * Largest zoom of one wheel event. Wheel events with ctrl count tenfold, for the small steps of a pinch; a mouse wheel
 * must not jump.
 */
const LARGEST_WHEEL_STEP = 0.4;
const PINCH = 10;
const WHEEL_UNITS = [0.002, 0.05, 1] as const;
/** Maximum movement of a click, pixels. */
const CLICK_DISTANCE = 4;

interface Point {
  x: number;
  y: number;
}

export class Pilot {
  view: CameraView = { x: 0, y: 0, k: 1 };
  /** Target of a smooth movement; null if the camera is at rest. */
  target: CameraView | null = null;
  private least = SMALLEST_SCALE;

  /** `takes` decides whether a wheel or touch event is for the camera; `moved` is called when the user moves it. */
  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly takes: (event: WheelEvent | TouchEvent) => boolean,
    private readonly moved: () => void,
    signal: AbortSignal,
  ) {
    this.bindDrag(signal);
    this.bindTouches(signal);
    canvas.addEventListener("wheel", (event) => {
      if (!takes(event)) return;
      event.preventDefault();
      if (!event.deltaY) return; // horizontal scrolling
      const { x, y } = this.pointOf(event);
      this.steer(scaledAbout(this.view, this.allowed(this.view.k * 2 ** wheelDelta(event)), x, y));
    }, { signal, passive: false });
  }

  private bindDrag(signal: AbortSignal): void {
    const { canvas } = this;
    let last: Point | null = null;
    let pressed: Point = { x: 0, y: 0 };
    let before = this.view;
    let isClick = true;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch" || event.ctrlKey || event.button) return;
      canvas.setPointerCapture(event.pointerId);
      isClick = true;
      last = pressed = this.pointOf(event);
      before = this.view;
    }, { signal });
    canvas.addEventListener("pointermove", (event) => {
      if (!last || !canvas.hasPointerCapture(event.pointerId)) return;
      const to = this.pointOf(event);
      isClick &&= Math.hypot(to.x - pressed.x, to.y - pressed.y) <= CLICK_DISTANCE;
      this.steer(dragged(this.view, last, to));
      last = to;
    }, { signal });
    canvas.addEventListener("lostpointercapture", () => { // released, cancelled, or lost without an event
      last = null;
    }, { signal });
    bindDragEnd(() => last !== null, (back) => {
      last = null;
      isClick = false;
      if (back) this.steer(before);
    }, signal);
    canvas.addEventListener("click", (event) => {
      if (!isClick) event.stopImmediatePropagation();
      isClick = true;
    }, { signal, capture: true });
  }

  /** Bind touch events: one finger drags, two drag and zoom. */
  private bindTouches(signal: AbortSignal): void {
    const { canvas } = this;
    let last: Point[] = [];
    const pointsOf = (event: TouchEvent) => [...event.targetTouches].slice(0, 2).map((touch) => this.pointOf(touch));
    for (const change of ["touchstart", "touchend", "touchcancel"] as const) {
      canvas.addEventListener(change, (event) => {
        last = this.takes(event) ? pointsOf(event) : [];
      }, { signal, passive: true });
    }
    canvas.addEventListener("touchmove", (event) => {
      if (!last.length || !event.cancelable) return; // the page is already scrolling
      event.preventDefault();
      const points = pointsOf(event);
      const [from, to] = [middleOf(last), middleOf(points)];
      const k = this.allowed((this.view.k * spreadOf(points)) / spreadOf(last));
      this.steer(scaledAbout(dragged(this.view, from, to), k, to.x, to.y));
      last = points;
    }, { signal, passive: false });
  }

  private pointOf({ clientX, clientY }: { clientX: number; clientY: number }): Point {
    const { left, top } = this.canvas.getBoundingClientRect();
    return { x: clientX - left, y: clientY - top };
  }

  /** Apply a movement by the user, which ends the deck's own movement. */
  private steer(view: CameraView): void {
    this.jump(view);
    this.moved();
  }

  /** Set the minimum scale, slightly below that of the whole picture. */
  allow(fitScale: number): void {
    this.least = Math.min(SMALLEST_SCALE, fitScale * BELOW_FIT);
  }

  /** Return the nearest allowed scale. */
  allowed(scale: number): number {
    return Math.max(this.least, Math.min(LARGEST_SCALE, scale));
  }

  glide(target: CameraView): void {
    this.target = sameView(target, this.view) ? null : target;
  }

  jump(view: CameraView): void {
    this.target = null;
    this.view = view;
  }

  /** Continue a smooth movement. Return whether it is unfinished. */
  advance(elapsed: number): boolean {
    const { target, view } = this;
    if (!target) return false;
    const share = 1 - Math.exp(-elapsed / TIME_CONSTANT);
    const next = {
      x: view.x + (target.x - view.x) * share,
      y: view.y + (target.y - view.y) * share,
      k: view.k + (target.k - view.k) * share,
    };
    const left = Math.max(Math.abs(target.x - next.x), Math.abs(target.y - next.y));
    if (left < NEAR.move && Math.abs(target.k / next.k - 1) < NEAR.scale) this.jump(target);
    else this.view = next;
    return this.target !== null;
  }

  /** Camera's position, or its target while it moves. */
  get aim(): CameraView {
    return this.target ?? this.view;
  }
}

function dragged({ x, y, k }: CameraView, from: Point, to: Point): CameraView {
  return { x: x + to.x - from.x, y: y + to.y - from.y, k };
}

function middleOf(points: readonly Point[]): Point {
  const sum = points.reduce((all, { x, y }) => ({ x: all.x + x, y: all.y + y }));
  return { x: sum.x / points.length, y: sum.y / points.length };
}

/** Return the distance between two fingers; 1 for a single finger. */
function spreadOf([one, other]: readonly Point[]): number {
  return other ? Math.max(1, Math.hypot(one.x - other.x, one.y - other.y)) : 1;
}

/** Return the power of two by which a wheel event zooms. */
function wheelDelta({ deltaY, deltaMode, ctrlKey }: WheelEvent): number {
  const step = -deltaY * (WHEEL_UNITS[deltaMode] ?? WHEEL_UNITS[0]) * (ctrlKey ? PINCH : 1);
  return Math.max(-LARGEST_WHEEL_STEP, Math.min(LARGEST_WHEEL_STEP, step));
}
