/** The visible part of an axis (all of it unless zoomed), and the numbers along it. */

import { svg } from "../dom.ts";
import { roundStep } from "../ticks.ts";
import { type AxisTold, numberText } from "./data.ts";

const LEAST = 1e-4; // smallest visible share of the axis
const APART = 90; // approximate distance between two numbers, pixels
const LETTER = 7; // width of a digit, pixels
const GAP = 3;

/** Return round values between two values, with their positions from 0 to 1. */
export function ticksBetween(low: number, high: number, count: number): [number, number][] {
  const step = roundStep((high - low) / count);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, at) => {
    const value = (first + at) * step;
    return [value, (value - low) / (high - low)];
  });
}

export class Window {
  from = 0;
  to = 1;
  readonly content: SVGSVGElement;
  constructor(
    readonly outer: SVGSVGElement,
    readonly axis: AxisTold,
    private readonly plot: SVGSVGElement,
  ) {
    this.content = outer.querySelector<SVGSVGElement>(".content")!;
    new ResizeObserver(() => this.draw()).observe(plot);
  }

  private get marks(): Element {
    return this.outer.previousElementSibling!;
  }

  get isZoomed(): boolean {
    return this.to - this.from < 1;
  }

  /** Left edge and width on the screen. */
  get edges(): { left: number; width: number } {
    const { left, width } = this.plot.getBoundingClientRect();
    const share = (name: string) => parseFloat(this.outer.getAttribute(name)!) / 100;
    return { left: left + width * share("x"), width: width * share("width") };
  }

  /** Return the share of the axis at a screen position. */
  shareAt(x: number): number {
    const { left, width } = this.edges;
    return this.from + ((x - left) / width) * (this.to - this.from);
  }

  /** Return the screen position of a share of the axis. */
  screenAt(share: number): number {
    const { left, width } = this.edges;
    return left + ((share - this.from) / (this.to - this.from)) * width;
  }

  /** Return the share of the axis at a value. */
  shareOf(value: number): number {
    const { low, high, log } = this.axis;
    return ((log ? Math.log10(value) : value) - low) / (high - low || 1);
  }

  show(from: number, to: number): void {
    const length = Math.min(1, Math.max(LEAST, to - from));
    this.from = Math.max(0, Math.min(from, 1 - length));
    this.to = this.from + length;
    this.content.setAttribute("x", `${(-100 * this.from) / length}%`);
    this.content.setAttribute("width", `${100 / length}%`);
    this.outer.classList.toggle("cut", this.isZoomed);
    this.draw();
  }

  /** Draw as many numbers as fit. */
  private draw(): void {
    if (this.edges.width) this.marks.replaceChildren(...this.numbers());
  }

  private numbers(): Node[] {
    const { low, high, log, suffix, ticks, ink, grid } = this.axis;
    const value = (share: number) => low + share * (high - low);
    const count = Math.max(2, this.edges.width / APART);
    const found: [number, string][] =
      ticks || log
        ? (ticks ?? []).map(([share, text]) => [(share - this.from) / (this.to - this.from), text])
        : ticksBetween(value(this.from), value(this.to), count).map(([at, share]) => [share, numberText(at) + suffix]);
    const top = Number(this.plot.dataset.top);
    const bottom = Number(this.plot.dataset.bottom);
    let taken = -Infinity; // right edge of the last number, pixels
    return found
      .filter(([share]) => share >= -1e-6 && share <= 1 + 1e-6)
      .flatMap(([share, text]) => {
        const x = `${100 * share}%`;
        const line = grid ? [svg("line", { x1: x, x2: x, y1: top, y2: bottom, stroke: grid })] : [];
        const [middle, half] = [share * this.edges.width, (LETTER * text.length) / 2];
        if (middle - half < taken + GAP) return line;
        taken = middle + half;
        return [...line, svg("text", { x, y: bottom + 16, fill: ink, "text-anchor": "middle" }, text)];
      });
  }
}
