/** What the graph is drawn with: the canvas on the screen, and SVG for the export. One drawing, two pens. */

import { FONT } from "../canvas.ts";
import type { Rect } from "../layout/layout_types.ts";
import type { Outline } from "./wire_path.ts";

export interface Paint {
  fill?: string;
  stroke?: string;
  /** Of the stroke; 1 without. */
  width?: number;
  dash?: readonly number[];
  /** Line ends and corners are round. */
  round?: boolean;
}

/** A piece of text in one style. `gap` is what is free before it. */
export interface Span {
  text: string;
  fill: string;
  size: number;
  weight: 400 | 500 | 600;
  gap?: number;
}

export interface Pen {
  /** How opaque all that follows is, 0 to 1. */
  alpha: number;
  rounded(rect: Rect, radius: number, paint: Paint): void;
  /** Many rectangles in one style. */
  rects(rects: readonly Rect[], radius: number, paint: Paint): void;
  circle(x: number, y: number, radius: number, paint: Paint): void;
  /** A sector that starts at the top, `share` of the whole. */
  sector(x: number, y: number, radius: number, share: number, fill: string): void;
  /** Lines through corners x, y, x, y, ...; closed where it is filled. */
  lines(corners: readonly number[], paint: Paint): void;
  outline(outline: Outline, paint: Paint): void;
  /** Many lines in one style, each through corners x, y, x, y, ...: nothing is rounded. */
  polylines(corners: readonly (readonly number[])[], paint: Paint): void;
  /** Text in one line; y is its middle. */
  text(x: number, y: number, spans: readonly Span[], anchor?: "start" | "middle" | "end"): void;
  measure(spans: readonly Span[]): number;
  /** What is drawn until `end` has this tooltip, in a picture that can have any. */
  begin(title: string): void;
  end(): void;
}

/** From the middle of a line of text down to its baseline, in parts of its size. */
export const BASELINE = 0.36;

const SOLID: readonly number[] = [];
/** Longer paths are slower to draw than several shorter ones. */
const LINES_PER_PATH = 400;
const MOST_MEASURED = 5000;
/** Text is as wide as its size is large: it is measured once, at this one. */
const MEASURED_AT = 20;

export class CanvasPen implements Pen {
  /** Widths of text that was measured, by font and text: browsers are slow at both. */
  private readonly widths = new Map<string, number>();
  private font = "";

  constructor(private readonly context: CanvasRenderingContext2D) {}

  get alpha(): number {
    return this.context.globalAlpha;
  }

  set alpha(value: number) {
    this.context.globalAlpha = value;
  }

  rounded(rect: Rect, radius: number, paint: Paint): void {
    const { context } = this;
    context.beginPath();
    context.roundRect(rect.x, rect.y, rect.width, rect.height, radius);
    this.paint(paint);
  }

  rects(rects: readonly Rect[], radius: number, paint: Paint): void {
    const { context } = this;
    context.beginPath();
    for (const { x, y, width, height } of rects) {
      if (radius) context.roundRect(x, y, width, height, radius);
      else context.rect(x, y, width, height);
    }
    this.paint(paint);
  }

  circle(x: number, y: number, radius: number, paint: Paint): void {
    this.context.beginPath();
    this.context.arc(x, y, radius, 0, 2 * Math.PI);
    this.paint(paint);
  }

  sector(x: number, y: number, radius: number, share: number, fill: string): void {
    const { context } = this;
    context.fillStyle = fill;
    context.beginPath();
    context.moveTo(x, y);
    context.arc(x, y, radius, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * share);
    context.fill();
  }

  lines(corners: readonly number[], paint: Paint): void {
    const { context } = this;
    context.beginPath();
    for (let at = 0; at < corners.length; at += 2) context.lineTo(corners[at], corners[at + 1]);
    if (paint.fill) context.closePath();
    this.paint(paint);
  }

  outline(outline: Outline, paint: Paint): void {
    const { context } = this;
    context.strokeStyle = paint.stroke ?? "";
    context.lineWidth = paint.width ?? 1;
    if (!paint.dash) return context.stroke(outline.path);
    context.setLineDash(paint.dash as number[]);
    context.stroke(outline.path);
    context.setLineDash(SOLID as number[]);
  }

  polylines(corners: readonly (readonly number[])[], paint: Paint): void {
    const { context } = this;
    for (let first = 0; first < corners.length; first += LINES_PER_PATH) {
      context.beginPath();
      for (const line of corners.slice(first, first + LINES_PER_PATH)) {
        context.moveTo(line[0], line[1]);
        for (let at = 2; at < line.length; at += 2) context.lineTo(line[at], line[at + 1]);
      }
      this.paint(paint);
    }
  }

  text(x: number, y: number, spans: readonly Span[], anchor: "start" | "middle" | "end" = "start"): void {
    const { context } = this;
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    if (anchor !== "start") x -= this.measure(spans) * (anchor === "end" ? 1 : 0.5);
    for (const span of spans) {
      x += span.gap ?? 0;
      this.take(font(span));
      context.fillStyle = span.fill;
      context.fillText(span.text, x, y + BASELINE * span.size);
      if (spans.length > 1) x += this.widthOf(span);
    }
  }

  measure(spans: readonly Span[]): number {
    let width = 0;
    for (const span of spans) width += (span.gap ?? 0) + this.widthOf(span);
    return width;
  }

  private widthOf(span: Span): number {
    const key = `${span.weight} ${span.text}`;
    let width = this.widths.get(key);
    if (width === undefined) {
      this.take(font({ ...span, size: MEASURED_AT }));
      width = this.context.measureText(span.text).width / MEASURED_AT;
      if (this.widths.size > MOST_MEASURED) this.widths.clear();
      this.widths.set(key, width);
    }
    return width * span.size;
  }

  private take(wanted: string): void {
    if (wanted === this.font) return;
    this.font = this.context.font = wanted;
  }

  /** A canvas that was resized has forgotten its font. */
  reset(): void {
    this.font = "";
  }

  begin(): void {}

  end(): void {}

  private paint(paint: Paint): void {
    const { context } = this;
    if (paint.fill) {
      context.fillStyle = paint.fill;
      context.fill();
    }
    if (!paint.stroke) return;
    context.strokeStyle = paint.stroke;
    context.lineWidth = paint.width ?? 1;
    context.lineCap = paint.round ? "round" : "butt";
    context.lineJoin = paint.round ? "round" : "miter";
    if (paint.dash) context.setLineDash(paint.dash as number[]);
    context.stroke();
    if (paint.dash) context.setLineDash(SOLID as number[]);
  }
}

function font(span: Span): string {
  return `${span.weight} ${span.size}px ${FONT}`;
}
