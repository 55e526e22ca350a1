/** A box, closed as a card or open around what is in it. */

import type { Extent } from "./arrangement.ts";
import type { Canvas, Cell, Inside } from "./cells.ts";
import { heightBeside, placeSides, roomBeside, type Side } from "./sides.ts";
import { shorten, textWidth } from "./text_width.ts";
import type { Box } from "./tree.ts";

/** Around what is in an open box. */
const PAD = 10;
/** The height of an open box's title. */
const HEADER = 26;
const CARD_HEIGHT = 42;
/** How far the cards behind a closed box stand out. */
const CARDS_BEHIND = 6;
const WIDEST_CARD_LABEL = 260;
const NEARLY_STRAIGHT = 60;

/** A closed box: name, class and the number of tasks, before two more cards. */
export class CardCell implements Cell {
  readonly extent: Extent;
  private readonly label: FittedLabel;
  private readonly width: number;

  constructor(
    private readonly box: Box,
    private readonly left: readonly Side[],
    private readonly right: readonly Side[],
  ) {
    this.label = fittedLabel(box, WIDEST_CARD_LABEL);
    this.width = Math.max(140, 2 * Math.ceil((this.label.width + 56) / 2));
    const half = this.width / 2;
    this.extent = {
      left: half + roomBeside(left),
      right: half + Math.max(CARDS_BEHIND, roomBeside(right)),
      height: Math.max(CARD_HEIGHT + CARDS_BEHIND, heightBeside(left, right)),
      foot: CARD_HEIGHT,
    };
  }

  arrives(): number {
    return 0;
  }

  leaves(): number {
    return 0;
  }

  place(x: number, y: number, canvas: Canvas): void {
    const { box, width } = this;
    const rect = { x: x - width / 2, y, width, height: CARD_HEIGHT };
    const { title, subtitle } = this.label;
    canvas.boxes.push({ box, rect, title, subtitle, depth: box.depth, closed: true });
    placeSides(~box.id, this.left, rect, -1, canvas);
    placeSides(~box.id, this.right, rect, 1, canvas);
  }
}

interface FittedLabel {
  title: string;
  subtitle: string;
  width: number;
}

/** Of title and subtitle the title is shortened last; numbers of calls are never cut. */
function fittedLabel(box: Box, width: number): FittedLabel {
  let title = shorten(box.title, width, 11, true);
  const left = width - textWidth(title, 11, true) - 6;
  let subtitle = left > 24 ? shorten(box.subtitle, left) : "";
  if (/[×\d]/.test(box.subtitle) && !box.path && subtitle !== box.subtitle) {
    subtitle = shorten(box.subtitle, width - 66);
    title = shorten(box.title, Math.max(60, width - textWidth(subtitle) - 6), 11, true);
  }
  return { title, subtitle, width: textWidth(title, 11, true) + (subtitle ? 6 + textWidth(subtitle) : 0) };
}

/** An open box around what has been laid out in it. */
export class BoxCell implements Cell {
  readonly extent: Extent;
  private readonly label: FittedLabel;
  private readonly width: number;
  private readonly height: number;
  private readonly margin: number;
  private readonly axis: number;
  /** By wire the x at which it crosses the box's edge. */
  private readonly entryX = new Map<number, number>();
  private readonly exitX = new Map<number, number>();

  /** `weights` are of the wires, by number. */
  constructor(
    private readonly box: Box,
    private readonly inside: Inside,
    weights: readonly number[],
  ) {
    const { arrangement } = inside;
    this.label = fittedLabel(box, Math.max(320, arrangement.width));
    this.width = Math.ceil(Math.max(arrangement.width + 2 * PAD, this.label.width + 2 * PAD + 4));
    this.height = HEADER + arrangement.height + PAD;
    this.margin = (this.width - arrangement.width) / 2;
    inside.entries.forEach((wire, place) => this.entryX.set(wire, arrangement.entries[place][0] + this.margin));
    inside.exits.forEach((wire, place) => {
      const points = arrangement.exits[place];
      this.exitX.set(wire, points[points.length - 2] + this.margin);
    });
    this.axis = this.axisFor(weights);
    this.extent = { left: this.axis, right: this.width - this.axis, height: this.height, foot: this.height };
  }

  /** Where the heaviest wire comes in or leaves, or else the middle: where wires of both sides are straightest. */
  private axisFor(weights: readonly number[]): number {
    const middle = this.width / 2;
    const entry = mainPort(this.entryX, weights, middle);
    const exit = mainPort(this.exitX, weights, entry);
    if (Math.abs(entry - exit) <= NEARLY_STRAIGHT || Math.abs(entry - middle) < this.width / 4) return entry;
    return Math.abs(exit - middle) < this.width / 4 ? exit : middle;
  }

  arrives(wire: number): number {
    return (this.entryX.get(wire) as number) - this.axis;
  }

  leaves(wire: number): number {
    return (this.exitX.get(wire) as number) - this.axis;
  }

  place(x: number, y: number, canvas: Canvas): void {
    const { box, width, height, inside } = this;
    const left = x - this.axis;
    const { title, subtitle } = this.label;
    canvas.boxes.push({ box, rect: { x: left, y, width, height }, title, subtitle, depth: box.depth, closed: false });
    canvas.pending.push({ inside, x: left + this.margin, y: y + HEADER, top: y, bottom: y + height });
  }
}

/** The x of the heaviest wire's port, of equally heavy ones of that in the middle. */
function mainPort(ports: ReadonlyMap<number, number>, weights: readonly number[], otherwise: number): number {
  let heaviest = -1;
  let equal: number[] = [];
  for (const [wire, x] of ports) {
    if (weights[wire] > heaviest) {
      heaviest = weights[wire];
      equal = [];
    }
    if (weights[wire] === heaviest) equal.push(x);
  }
  equal.sort((a, b) => a - b);
  return equal.length ? equal[equal.length >> 1] : otherwise;
}
