/** Painter of the graph's canvas, which redraws everything or only the part changed by a step. */

import type { Rect, Size } from "../layout/layout_types.ts";
import type { Colours } from "../view_types.ts";
import { areaOf, type CameraView, sameView } from "./camera.ts";
import { damageBetween } from "./dirty_area.ts";
import { drawScene } from "./draw_scene.ts";
import type { Facts } from "./frame_state.ts";
import type { Motion } from "./layout_animation.ts";
import { CanvasPen } from "./pen.ts";
import type { Outline } from "./wire_path.ts";

/** Share of the screen above which everything is redrawn. */
const MOST_DAMAGE = 0.6;

export interface Frame {
  facts: Facts;
  colours: Colours;
  view: CameraView;
  size: Size;
  motion: Motion | null;
  share: number;
}

export class Painter {
  readonly pen: CanvasPen;
  private readonly context: CanvasRenderingContext2D;
  private last: (Frame & { ratio: number }) | null = null;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    /** Bytes of each edge. */
    readonly bytes: Float64Array,
  ) {
    this.context = canvas.getContext("2d") as CanvasRenderingContext2D;
    this.pen = new CanvasPen(this.context);
  }

  paint(frame: Frame): void {
    const ratio = devicePixelRatio || 1;
    const damage = this.damage(frame, ratio);
    this.last = { ...frame, ratio };
    if (damage === "none") return;
    this.resize(frame.size, ratio);
    const { context, canvas } = this;
    const { facts, colours, view, motion, share } = frame;
    const whole = { x: 0, y: 0, width: canvas.width, height: canvas.height };
    const pixels = damage === "all" ? whole : damage;
    context.save();
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.beginPath();
    context.rect(pixels.x, pixels.y, pixels.width, pixels.height);
    context.clip();
    context.fillStyle = colours.panel;
    context.fillRect(pixels.x, pixels.y, pixels.width, pixels.height);
    const scale = ratio * view.k;
    context.setTransform(scale, 0, 0, scale, ratio * view.x, ratio * view.y);
    const area = areaOf(
      { k: scale, x: ratio * view.x - pixels.x, y: ratio * view.y - pixels.y },
      { width: pixels.width, height: pixels.height },
    );
    this.pen.reset();
    drawScene(this.pen, colours, facts, { area, scale: view.k, bytes: this.bytes, motion, share });
    context.restore();
  }

  /** Return whether a point of the picture is on a line of this width. */
  isOn(outline: Outline, x: number, y: number, width: number): boolean {
    this.context.lineWidth = width;
    return this.context.isPointInStroke(outline.path, x, y);
  }

  /** Return the area to redraw, in whole device pixels, because half a pixel would leave a visible seam. */
  private damage(frame: Frame, ratio: number): Rect | "none" | "all" {
    const { last } = this;
    const { view, size, colours, motion, facts } = frame;
    if (!last || motion || last.motion || last.ratio !== ratio || last.colours !== colours) return "all";
    if (!sameView(last.view, view) || last.size.width !== size.width || last.size.height !== size.height) return "all";
    const damage = damageBetween(last.facts, facts, view.k);
    if (typeof damage === "string") return damage;
    const scale = ratio * view.k;
    const left = Math.max(0, Math.floor(damage.x * scale + ratio * view.x));
    const top = Math.max(0, Math.floor(damage.y * scale + ratio * view.y));
    const right = Math.min(this.canvas.width, Math.ceil((damage.x + damage.width) * scale + ratio * view.x));
    const bottom = Math.min(this.canvas.height, Math.ceil((damage.y + damage.height) * scale + ratio * view.y));
    if (right <= left || bottom <= top) return "none";
    const share = ((right - left) * (bottom - top)) / (this.canvas.width * this.canvas.height);
    return share > MOST_DAMAGE ? "all" : { x: left, y: top, width: right - left, height: bottom - top };
  }

  private resize(size: Size, ratio: number): void {
    const width = Math.round(size.width * ratio);
    const height = Math.round(size.height * ratio);
    if (this.canvas.width === width && this.canvas.height === height) return;
    this.canvas.width = width;
    this.canvas.height = height;
  }
}
