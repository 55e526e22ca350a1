/** Moves the camera: by d3-zoom where the reader does it, and smoothly where the deck does. Both through d3's state. */

import { select } from "d3-selection";
import { type D3ZoomEvent, type ZoomBehavior, zoom, zoomIdentity } from "d3-zoom";
import { type CameraView, LARGEST_SCALE, sameView } from "./camera.ts";

/** The time in which the camera goes 63 % of the way, milliseconds. */
const TIME_CONSTANT = 70;
/** This near it has arrived: pixels, and parts of the scale. */
const NEAR = { move: 0.3, scale: 0.001 };
const SMALLEST_SCALE = 0.15;
/** Further out than the whole picture. */
const BELOW_FIT = 0.7;
/** d3's wheel is ten times as fast with ctrl, for the small steps of a pinch: one click of a wheel must not be a leap. */
const LARGEST_WHEEL_STEP = 0.4;
const PINCH = 10;
const WHEEL_UNITS = [0.002, 0.05, 1] as const;
/** A press that moves less is a click, pixels. */
const CLICK_DISTANCE = 4;

export class Pilot {
  view: CameraView = { x: 0, y: 0, k: 1 };
  /** Where the camera glides to; null where it stands. */
  target: CameraView | null = null;
  private readonly behaviour: ZoomBehavior<HTMLCanvasElement, unknown>;

  /** `takes` says whether a wheel or a touch is for the camera; `moved` is called for each move of the reader's. */
  constructor(
    private readonly canvas: HTMLCanvasElement,
    takes: (event: WheelEvent | TouchEvent) => boolean,
    moved: () => void,
  ) {
    this.behaviour = zoom<HTMLCanvasElement, unknown>()
      .clickDistance(CLICK_DISTANCE)
      .wheelDelta(wheelDelta)
      .filter((event: MouseEvent | WheelEvent | TouchEvent) => {
        if (event.type === "wheel" || event.type.startsWith("touch")) return takes(event as WheelEvent | TouchEvent);
        return !event.ctrlKey && (event as MouseEvent).button === 0;
      })
      .on("zoom", (event: D3ZoomEvent<HTMLCanvasElement, unknown>) => {
        const { x, y, k } = event.transform;
        this.view = { x, y, k };
        if (!event.sourceEvent) return;
        this.target = null;
        moved();
      });
    select(canvas).call(this.behaviour).on("dblclick.zoom", null);
  }

  /** Lets the reader zoom out to the whole picture, and somewhat further. */
  allow(fitScale: number): void {
    this.behaviour.scaleExtent([Math.min(SMALLEST_SCALE, fitScale * BELOW_FIT), LARGEST_SCALE]);
  }

  /** The nearest scale that is allowed. */
  allowed(scale: number): number {
    const [least, most] = this.behaviour.scaleExtent();
    return Math.max(least, Math.min(most, scale));
  }

  /** Tells d3 how large the screen is, so that it asks no one. */
  resize(width: number, height: number): void {
    this.behaviour.extent([
      [0, 0],
      [width, height],
    ]);
  }

  glide(target: CameraView): void {
    this.target = sameView(target, this.view) ? null : target;
  }

  jump(view: CameraView): void {
    this.target = null;
    this.set(view);
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
    else this.set(next);
    return this.target !== null;
  }

  /** Where the camera is, or will be when it has arrived. */
  get aim(): CameraView {
    return this.target ?? this.view;
  }

  dispose(): void {
    select(this.canvas).on(".zoom", null);
  }

  private set({ x, y, k }: CameraView): void {
    this.behaviour.transform(select(this.canvas), zoomIdentity.translate(x, y).scale(k));
  }
}

/** By which power of two a turn of the wheel scales. */
function wheelDelta({ deltaY, deltaMode, ctrlKey }: WheelEvent): number {
  const step = -deltaY * (WHEEL_UNITS[deltaMode] ?? WHEEL_UNITS[0]) * (ctrlKey ? PINCH : 1);
  return Math.max(-LARGEST_WHEEL_STEP, Math.min(LARGEST_WHEEL_STEP, step));
}
