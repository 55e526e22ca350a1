/** Boxes in the layout: closed ones as cards, open ones around their content. */

import {
  BEFORE_LAYERS, CARDS_BEHIND, CHEVRON, HEADER, NEARLY_STRAIGHT, PAD, SPINE, TASK_HEIGHT, WIDEST_FOLDED,
} from "../../../../inspector/drawing/layout_constants.json";
import type { Extent } from "./arrangement.ts";
import type { Canvas, Cell, Inside } from "./cells.ts";
import { layersWidth } from "./layers.ts";
import { heightBeside, placeSides, roomBeside, type Side } from "./pills_and_stubs.ts";
import { shorten, shortenPath, textWidth } from "./text_width.ts";
import type { Box, Tree } from "./box_tree.ts";

/** A closed box as one row, with name and class on its spine and stubs at its right. */
export class FoldedCell implements Cell {
  readonly extent: Extent;
  private readonly label: FittedLabel;
  private readonly width: number;

  constructor(
    tree: Tree,
    private readonly box: Box,
    private readonly sides: readonly Side[],
  ) {
    this.label = fittedLabel(box, WIDEST_FOLDED);
    const widest = Math.max(this.label.width, box.kind === "views" ? widestView(tree, box) : 0);
    this.width = Math.max(44, Math.ceil(widest) + 30);
    const behind = box.layers ? CARDS_BEHIND : 0;
    const right = this.width - SPINE + Math.max(behind, roomBeside(sides));
    this.extent = { left: SPINE, right, height: heightBeside(sides) + behind, foot: TASK_HEIGHT };
  }

  arrives(): number {
    return 0;
  }

  leaves(): number {
    return 0;
  }

  place(x: number, y: number, canvas: Canvas): void {
    const { box, width } = this;
    const rect = { x: x - SPINE, y, width, height: TASK_HEIGHT };
    const { title, subtitle } = this.label;
    canvas.boxes.push({ box, rect, title, subtitle, depth: box.depth, closed: true, layersAt: 0 });
    placeSides(~box.id, this.sides, rect, canvas);
  }
}

/** Return the width of a row of views while one of them runs; the row then shows its name. */
function widestView({ graph }: Tree, { children }: Box): number {
  const views = children.filter((child) => typeof child === "number");
  return views.reduce((widest, task) => {
    return Math.max(widest, textWidth(runningView(graph.titles[task], views.length), 11, true));
  }, 0);
}

/** Return the label of views while one of them runs: "Clone ⋯ 7". */
export function runningView(name: string, count: number): string {
  return `${shorten(name, WIDEST_FOLDED)} ⋯ ${count}`;
}

interface FittedLabel {
  title: string;
  subtitle: string;
  width: number;
}

/** Return the header of a box. For equal layers, it has the title of the drawn layer and space for any other. */
function openLabel(box: Box, width: number): FittedLabel {
  const { layers, subtitle } = box;
  if (!layers) return fittedLabel(box, width);
  const labels = [...new Set(layers.titles)].map((title) => fittedLabel({ ...box, title, subtitle }, width));
  const shown = fittedLabel({ ...box, title: layers.titles[layers.drawn], subtitle }, width);
  return { ...shown, width: labels.reduce((most, label) => Math.max(most, label.width), 0) };
}

/** Shorten subtitle and title to fit; the subtitle is shortened first, and numbers of calls are never cut. */
function fittedLabel(box: Pick<Box, "title" | "subtitle" | "path" | "layers">, width: number): FittedLabel {
  let title = shortenPath(box.title, width, true);
  const left = width - textWidth(title, 11, true) - 6;
  let subtitle = left > 24 ? shorten(box.subtitle, left) : "";
  if (subtitle !== box.subtitle && (box.layers || (!box.path && /\d/.test(box.subtitle)))) {
    subtitle = shorten(box.subtitle, width - 66);
    title = shortenPath(box.title, Math.max(60, width - textWidth(subtitle) - 6), true);
  }
  return { title, subtitle, width: textWidth(title, 11, true) + (subtitle ? 6 + textWidth(subtitle) : 0) };
}

/** An open box around its laid out content. */
export class BoxCell implements Cell {
  readonly extent: Extent;
  private readonly label: FittedLabel;
  private readonly layersAt: number;
  private readonly width: number;
  private readonly height: number;
  private readonly margin: number;
  private readonly axis: number;
  /** The x at which each wire crosses the box's edge. */
  private readonly entryX = new Map<number, number>();
  private readonly exitX = new Map<number, number>();

  /** `weights` are indexed by wire. */
  constructor(
    private readonly box: Box,
    private readonly inside: Inside,
    weights: readonly number[],
  ) {
    const { arrangement } = inside;
    this.label = openLabel(box, Math.max(320, arrangement.width));
    const titled = this.label.width + PAD + CHEVRON;
    this.layersAt = box.layers ? Math.ceil(titled + BEFORE_LAYERS) : 0;
    const headed = box.layers ? this.layersAt + layersWidth(box.layers.count) : titled;
    this.width = Math.ceil(Math.max(arrangement.width + 2 * PAD, headed + PAD));
    this.height = HEADER + arrangement.height + PAD;
    this.margin = (this.width - arrangement.width) / 2;
    inside.entries.forEach((wire, place) => this.entryX.set(wire, arrangement.entries[place][0] + this.margin));
    inside.exits.forEach((wire, place) => {
      const points = arrangement.exits[place];
      this.exitX.set(wire, points[points.length - 2] + this.margin);
    });
    this.axis = this.axisFor(weights);
    const behind = box.layers ? CARDS_BEHIND : 0;
    const right = this.width - this.axis + behind;
    this.extent = { left: this.axis, right, height: this.height + behind, foot: this.height };
  }

  /** Return the axis: the port of the heaviest wire, or the middle, which keeps the wires on both sides straightest. */
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
    const { box, width, height, inside, layersAt } = this;
    const left = x - this.axis;
    const { title, subtitle } = this.label;
    const rect = { x: left, y, width, height };
    canvas.boxes.push({ box, rect, title, subtitle, depth: box.depth, closed: false, layersAt });
    canvas.pending.push({ inside, x: left + this.margin, y: y + HEADER, top: y, bottom: y + height });
  }
}

/** Return the x of the heaviest wire's port; of equally heavy wires, the middle one. */
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
