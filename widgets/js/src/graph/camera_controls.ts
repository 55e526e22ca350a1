/** Moves the camera: at once where the reader drags, turns the wheel or pinches, and smoothly where the deck does. */

import { bindLetGo } from "../views/cancel_drag.ts";
import { type CameraView, LARGEST_SCALE, sameView, scaledAbout } from "./camera.ts";

/** The time in which the camera goes 63 % of the way, milliseconds. */
const TIME_CONSTANT = 70;
/** This near it has arrived: pixels, and parts of the scale. */
const NEAR = { move: 0.3, scale: 0.001 };
const SMALLEST_SCALE = 0.15;
/** Further out than the whole picture. */
const BELOW_FIT = 0.7;
/** With ctrl ten times as fast, for the small steps of a pinch: one click of a wheel must not be a leap. */
const LARGEST_WHEEL_STEP = 0.4;
const PINCH = 10;
const WHEEL_UNITS = [0.002, 0.05, 1] as const;
/** A press that moves less is a click, pixels. */
const CLICK_DISTANCE = 4;

interface Point {
  x: number;
  y: number;
}

export class Pilot {
  view: CameraView = { x: 0, y: 0, k: 1 };
  /** Where the camera glides to; null where it stands. */
  target: CameraView | null = null;
  private least = SMALLEST_SCALE;

  /** `takes` says whether a wheel or a touch is for the camera; `moved` is called for each move of the reader's. */
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
      if (!event.deltaY) return; // sideways
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
    canvas.addEventListener("lostpointercapture", () => { // released, cancelled, or taken away without a word
      last = null;
    }, { signal });
    bindLetGo(() => last !== null, (back) => {
      last = null;
      isClick = false;
      if (back) this.steer(before);
    }, signal);
    canvas.addEventListener("click", (event) => {
      if (!isClick) event.stopImmediatePropagation();
      isClick = true;
    }, { signal, capture: true });
  }

  /** One finger drags, two drag and scale. */
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
      if (!last.length || !event.cancelable) return; // the page scrolls already
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

  /** The reader's moves end those of the deck. */
  private steer(view: CameraView): void {
    this.jump(view);
    this.moved();
  }

  /** Lets the reader zoom out to the whole picture, and somewhat further. */
  allow(fitScale: number): void {
    this.least = Math.min(SMALLEST_SCALE, fitScale * BELOW_FIT);
  }

  /** The nearest scale that is allowed. */
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

  /** Glides on. Returns whether there is more to go. */
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

  /** Where the camera is, or will be when it has arrived. */
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

/** How far two fingers are apart; 1 for one. */
function spreadOf([one, other]: readonly Point[]): number {
  return other ? Math.max(1, Math.hypot(one.x - other.x, one.y - other.y)) : 1;
}

/** By which power of two a turn of the wheel scales. */
function wheelDelta({ deltaY, deltaMode, ctrlKey }: WheelEvent): number {
  const step = -deltaY * (WHEEL_UNITS[deltaMode] ?? WHEEL_UNITS[0]) * (ctrlKey ? PINCH : 1);
  return Math.max(-LARGEST_WHEEL_STEP, Math.min(LARGEST_WHEEL_STEP, step));
}
