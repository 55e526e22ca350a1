/** Pens that draw the graph: the canvas on the screen, and SVG for the export. */

import { FONT } from "../canvas.ts";
import type { Rect } from "../layout/layout_types.ts";
import type { Outline } from "./wire_path.ts";

export interface Paint {
  fill?: string;
  stroke?: string;
  /** Width of the stroke; 1 by default. */
  width?: number;
  dash?: readonly number[];
  /** True for round line ends and corners. */
  round?: boolean;
}

/** A piece of text in one style. `gap` is the space before it. */
export interface Span {
  text: string;
  fill: string;
  size: number;
  weight: 400 | 500 | 600;
  gap?: number;
}

export interface Pen {
  /** Opacity of everything drawn next, 0 to 1. */
  alpha: number;
  rounded(rect: Rect, radius: number, paint: Paint): void;
  /** Draw many rectangles in one style. */
  rects(rects: readonly Rect[], radius: number, paint: Paint): void;
  circle(x: number, y: number, radius: number, paint: Paint): void;
  /** Draw a sector that starts at the top and covers `share` of the circle. */
  sector(x: number, y: number, radius: number, share: number, fill: string): void;
  /** Draw lines through corners x, y, x, y, ...; the path is closed if it is filled. */
  lines(corners: readonly number[], paint: Paint): void;
  outline(outline: Outline, paint: Paint): void;
  /** Draw many lines in one style, each through corners x, y, x, y, ..., without rounding. */
  polylines(corners: readonly (readonly number[])[], paint: Paint): void;
  /** Draw one line of text; y is its middle. */
  text(x: number, y: number, spans: readonly Span[], anchor?: "start" | "middle" | "end"): void;
  measure(spans: readonly Span[]): number;
  /** Start a group with this tooltip, up to the matching `end`, in formats that support tooltips. */
  begin(title: string): void;
  end(): void;
}

/** Distance from the middle of a line of text to its baseline, relative to the font size. */
export const BASELINE = 0.36;

const SOLID: readonly number[] = [];
/** Maximum number of lines per path; longer paths are slower than several short ones. */
const LINES_PER_PATH = 400;
const MOST_MEASURED = 5000;
/** Font size at which text is measured. Widths are proportional to the size, so each text is measured once. */
const MEASURED_AT = 20;

export class CanvasPen implements Pen {
  /** Cached text widths by font and text, because measuring is slow. */
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

  /** Reset the cached font after the canvas was resized, which clears it. */
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
