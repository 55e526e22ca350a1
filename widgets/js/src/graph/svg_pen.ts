/** A pen that writes SVG. */

import { FONT } from "../canvas.ts";
import { hundredths } from "../format.ts";
import type { Rect } from "../layout/layout_types.ts";
import { BASELINE, type Paint, type Pen, type Span } from "./pen.ts";
import type { Outline } from "./wire_path.ts";

export class SvgPen implements Pen {
  alpha = 1;
  private readonly parts: string[] = [];

  /** `measure` returns the width of spans, which SVG itself cannot compute. */
  constructor(readonly measure: (spans: readonly Span[]) => number) {}

  /** Return everything drawn, as a picture that shows `area` at `scale`. */
  document(area: Rect, scale: number, background: string, title: string): string {
    const box = [area.x, area.y, area.width, area.height].map((value) => hundredths(value)).join(" ");
    const size = `width="${hundredths(area.width * scale)}" height="${hundredths(area.height * scale)}"`;
    return [
      `<svg xmlns="http://www.w3.org/2000/svg" viewBox="${box}" ${size} role="img" font-family="${escaped(FONT)}"`,
      ` style="font-variant-numeric:tabular-nums">`,
      `<title>${escaped(title)}</title>`,
      `<rect x="${hundredths(area.x)}" y="${hundredths(area.y)}" `,
      `width="${hundredths(area.width)}" height="${hundredths(area.height)}"`,
      ` fill="${escaped(background)}"/>`,
      ...this.parts,
      "</svg>\n",
    ].join("");
  }

  rounded(rect: Rect, radius: number, paint: Paint): void {
    this.add(`<rect ${place(rect)} rx="${hundredths(radius)}"`, paint, "/>");
  }

  rects(rects: readonly Rect[], radius: number, paint: Paint): void {
    for (const rect of rects) this.rounded(rect, radius, paint);
  }

  circle(x: number, y: number, radius: number, paint: Paint): void {
    this.add(`<circle cx="${hundredths(x)}" cy="${hundredths(y)}" r="${hundredths(radius)}"`, paint, "/>");
  }

  sector(x: number, y: number, radius: number, share: number, fill: string): void {
    if (share >= 1) return this.circle(x, y, radius, { fill });
    const turn = 2 * Math.PI * share;
    const end = `${hundredths(x + radius * Math.sin(turn))} ${hundredths(y - radius * Math.cos(turn))}`;
    const arc = `${hundredths(radius)} ${hundredths(radius)} 0 ${share > 0.5 ? 1 : 0} 1 ${end}`;
    this.add(`<path d="M${hundredths(x)} ${hundredths(y)}V${hundredths(y - radius)}A${arc}Z"`, { fill }, "/>");
  }

  lines(corners: readonly number[], paint: Paint): void {
    const name = paint.fill ? "polygon" : "polyline";
    this.add(`<${name} points="${corners.map((value) => hundredths(value)).join(" ")}"`, paint, "/>");
  }

  outline(outline: Outline, paint: Paint): void {
    this.add(`<path d="${outline.data}"`, paint, "/>");
  }

  polylines(corners: readonly (readonly number[])[], paint: Paint): void {
    for (const line of corners) this.lines(line, paint);
  }

  text(x: number, y: number, spans: readonly Span[], anchor: "start" | "middle" | "end" = "start"): void {
    const size = spans[0]?.size ?? 0;
    const anchored = anchor === "start" ? "" : ` text-anchor="${anchor}"`;
    const written = spans.map((span) => {
      const gap = span.gap ? ` dx="${hundredths(span.gap)}"` : "";
      const style = `font-size="${hundredths(span.size)}" font-weight="${span.weight}" fill="${escaped(span.fill)}"`;
      return `<tspan${gap} ${style}>${escaped(span.text)}</tspan>`;
    });
    const head = `<text x="${hundredths(x)}" y="${hundredths(y + BASELINE * size)}"${anchored}${this.opacity()}>`;
    this.parts.push(head + written.join("") + "</text>");
  }

  begin(title: string): void {
    this.parts.push(`<g><title>${escaped(title)}</title>`);
  }

  end(): void {
    this.parts.push("</g>");
  }

  private add(start: string, paint: Paint, end: string): void {
    const stroke = paint.stroke ? ` stroke="${escaped(paint.stroke)}" stroke-width="${hundredths(paint.width ?? 1)}"` : "";
    const dash = paint.dash ? ` stroke-dasharray="${paint.dash.map((value) => hundredths(value)).join(" ")}"` : "";
    const round = paint.round ? ' stroke-linecap="round" stroke-linejoin="round"' : "";
    this.parts.push(`${start} fill="${escaped(paint.fill ?? "none")}"${stroke}${dash}${round}${this.opacity()}${end}`);
  }

  private opacity(): string {
    return this.alpha < 1 ? ` opacity="${hundredths(this.alpha)}"` : "";
  }
}

function place(rect: Rect): string {
  return (
    `x="${hundredths(rect.x)}" y="${hundredths(rect.y)}" ` +
    `width="${hundredths(Math.max(0, rect.width))}" height="${hundredths(Math.max(0, rect.height))}"`
  );
}

const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

/** Escape text for SVG. Characters that XML forbids (lone surrogates, control characters) become U+FFFD. */
export function escaped(text: string): string {
  return text
    .replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd")
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd")
    .replace(/[&<>"']/g, (character) => ENTITIES[character]);
}
