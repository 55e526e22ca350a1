/** A row of chips. */

import {
  DOT, MOST_ROOMY, PILL_HEIGHT, ROW_LINE, WIDEST_LABEL,
} from "../../../../inspector/drawing/layout_constants.json";
import { grouped } from "../format.ts";
import type { Extent } from "./arrangement.ts";
import type { Canvas, Cell } from "./cells.ts";
import type { Rect } from "./layout_types.ts";
import { placeSide, type Side, sideWidth, wireTo } from "./pills_and_stubs.ts";
import { shorten, textWidth } from "./text_width.ts";

const ROOMY = { chip: 12, gap: 5 };
const NARROW = { chip: 10, gap: 3 };

/** A pill or stub shared by several chips, with its edges by the chip's task. */
export interface Shared {
  side: Side;
  users: Map<number, number[]>;
}

/**
 * Many equal tasks as a row of chips, or a grid if there are very many. Parameters of single chips are dots beside
 * them. Shared parameters are pills at the right; each has a wire below the row that connects its users.
 */
export class RowCell implements Cell {
  readonly extent: Extent;
  private readonly label: string;
  private readonly labelWidth: number;
  private readonly isGrid: boolean;
  private readonly chip: number;
  private readonly pitch: number;
  /** Number of chips per line. */
  private readonly line: number;
  private readonly linePitch: number;
  private readonly chipsHeight: number;
  private readonly chipsWidth: number;
  private readonly number: Map<number, number>;

  constructor(
    private readonly tasks: readonly number[],
    title: string,
    private readonly own: ReadonlyMap<number, Side[]>,
    private readonly shared: readonly Shared[],
  ) {
    const count = tasks.length;
    this.label = `${shorten(title, WIDEST_LABEL)} ×${count}`;
    const progress = textWidth(`${grouped(count)} of ${grouped(count)} done`);
    this.labelWidth = Math.ceil(Math.max(textWidth(this.label, 11, true), progress)) + 4;
    this.isGrid = count > ROW_LINE;
    let most = 0;
    for (const sides of own.values()) most = Math.max(most, sides.length);
    const dotColumns = most <= 2 ? Math.min(most, 1) : Math.ceil(most / 2);
    const { chip, gap } = count > MOST_ROOMY ? NARROW : ROOMY;
    this.chip = chip;
    this.pitch = chip + gap + (DOT + 3) * dotColumns;
    this.line = this.isGrid ? Math.max(1, Math.floor(ROW_LINE / (1 + dotColumns))) : count;
    this.linePitch = chip + 6 + (most > 1 ? 6 : 0);
    this.chipsHeight = chip + (Math.ceil(count / this.line) - 1) * this.linePitch + (most > 1 ? 6 : 0);
    this.chipsWidth = this.line * this.pitch - gap;
    const pills = shared.reduce((widest, { side }) => Math.max(widest, sideWidth(side) + 16), 0);
    const half = this.chipsWidth / 2;
    this.extent = {
      left: half + this.labelWidth + 10,
      right: half + pills,
      height: this.chipsHeight + 22 * shared.length,
      foot: this.isGrid ? this.chipsHeight : chip,
    };
    this.number = new Map(tasks.map((task, number) => [task, number]));
  }

  arrives(_wire: number, end: number): number {
    return this.port(end);
  }

  leaves(_wire: number, end: number): number {
    return this.port(end);
  }

  private port(task: number): number {
    if (this.isGrid) return 0;
    return (this.number.get(task) as number) * this.pitch + this.chip / 2 - this.chipsWidth / 2;
  }

  place(x: number, y: number, canvas: Canvas): void {
    const edge = x - this.chipsWidth / 2;
    const { labelWidth, label, chip } = this;
    const beside = { x: edge - labelWidth - 10, y, width: labelWidth, height: chip };
    canvas.rows.push({ tasks: [...this.tasks], rect: beside, label });
    this.tasks.forEach((task, number) => {
      const left = edge + (number % this.line) * this.pitch;
      const top = y + Math.floor(number / this.line) * this.linePitch;
      const rect = { x: left, y: top, width: chip, height: chip };
      canvas.tasks.push({ task, rect, label: "", caption: "", chip: true });
      this.own.get(task)?.forEach((side, position) => placeDot(task, side, position, rect, canvas));
    });
    this.shared.forEach((shared, line) => this.placeShared(shared, line, edge, y, canvas));
  }

  private placeShared({ side, users }: Shared, line: number, edge: number, y: number, canvas: Canvas): void {
    const foot = y + this.chipsHeight;
    const rail = foot + 13 + 22 * line;
    const pill = edge + this.chipsWidth + 16;
    const [first] = users.keys();
    const rect = { x: pill, y: rail - PILL_HEIGHT / 2, width: sideWidth(side), height: PILL_HEIGHT };
    placeSide(first, side, rect, canvas, false);
    if (this.isGrid) {
      // the grid as a whole has one wire
      const start = edge + this.chip / 2 + 3;
      canvas.wires.push(wireTo(side, [...users.values()].flat(), first, [start, foot, start, rail, pill, rail]));
      return;
    }
    for (const [task, edges] of users) {
      const start = edge + (this.number.get(task) as number) * this.pitch + this.chip / 2 + 3;
      canvas.wires.push(wireTo(side, edges, task, [start, y + this.chip, start, rail, pill, rail]));
    }
  }
}

/** Place the dot of a parameter of one chip. From the third dot on there is no space for the wire. */
function placeDot(task: number, side: Side, position: number, chip: Rect, canvas: Canvas): void {
  const x = chip.x + chip.width + 3 + (position >> 1) * (DOT + 3);
  const rect = { x, y: chip.y + 2 + (position % 2) * (DOT + 1), width: DOT, height: DOT };
  placeSide(task, side, rect, canvas, true);
  const points = position < 2 ? toDot(chip.x + chip.width, chip.y + chip.height / 2, rect) : [];
  canvas.wires.push({ kind: "parameter", edges: side.edges, from: task, to: side.end, points });
}

function toDot(x: number, y: number, dot: Rect): number[] {
  const center = dot.y + DOT / 2;
  return center === y ? [x, y, dot.x, y] : [x, y, x + 1.5, y, x + 1.5, center, dot.x, center];
}
