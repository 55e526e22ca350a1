/** Pills and stubs at the right of a task, a folded box or a row of chips, and the wires to them. */

import {
  BESIDE, LONGEST_SIDE, PILL_HEIGHT, PILL_LINE, TASK_HEIGHT,
} from "../../../../inspector/drawing/layout_constants.json";
import type { Canvas } from "./cells.ts";
import type { PlacedWire, Rect } from "./layout_types.ts";
import { textWidth } from "./text_width.ts";

/** A pill or stub to be placed beside its user. `edges` are the edges its wire represents. */
export interface Side {
  kind: "pill" | "parameter" | "to" | "from";
  tasks: number[];
  label: string;
  edges: number[];
  /** The other end of its wire: a task, or a closed box as `~box.id`. */
  end: number;
}

export function sideWidth(side: Side): number {
  return Math.ceil(textWidth(side.label)) + (side.kind === "pill" ? 20 : 24) + 8;
}

function linesOf(sides: readonly Side[]): Side[][] {
  const lines: Side[][] = [];
  let length = Infinity;
  for (const side of sides) {
    const width = sideWidth(side) + BESIDE;
    length += width;
    if (length > LONGEST_SIDE) {
      lines.push([]);
      length = width;
    }
    lines[lines.length - 1].push(side);
  }
  return lines;
}

export function heightBeside(sides: readonly Side[]): number {
  return PILL_LINE * (Math.max(linesOf(sides).length, 1) - 1) + TASK_HEIGHT;
}

export function roomBeside(sides: readonly Side[]): number {
  const lengths = linesOf(sides).map((line) => line.reduce((length, side) => length + sideWidth(side) + BESIDE, 0));
  return lengths.reduce((most, length) => Math.max(most, length), 0);
}

/**
 * Place pills and stubs at the right of a task or a folded box, in lines; those below the first line hang on a rail.
 */
export function placeSides(end: number, sides: readonly Side[], beside: Rect, canvas: Canvas): void {
  const edge = beside.x + beside.width;
  const middle = beside.y + TASK_HEIGHT / 2;
  const rail = edge + BESIDE / 2;
  linesOf(sides).forEach((line, number) => {
    const center = middle + number * PILL_LINE;
    let from = number ? [edge, middle, rail, middle, rail, center] : [edge, middle];
    let x = edge + BESIDE;
    for (const side of line) {
      const width = sideWidth(side);
      placeSide(end, side, { x, y: center - PILL_HEIGHT / 2, width, height: PILL_HEIGHT }, canvas, false);
      canvas.wires.push(wireTo(side, side.edges, end, [...from, x, center]));
      from = [x + width, center];
      x += width + BESIDE;
    }
  });
}

export function placeSide(end: number, { kind, tasks, label }: Side, rect: Rect, canvas: Canvas, dot: boolean): void {
  if (kind === "pill") canvas.pills.push({ tasks, user: end, rect, label, dot });
  else canvas.stubs.push({ kind, task: end, others: tasks, rect, label, dot });
}

/** Return the wire between a task or card and a pill or stub beside it; `points` lead to the pill. */
export function wireTo(side: Side, edges: number[], end: number, points: number[]): PlacedWire {
  if (side.kind !== "from") {
    const kind = side.kind === "to" ? "gradient" : "parameter";
    return { kind, edges, from: end, to: side.end, points };
  }
  const reversed: number[] = [];
  for (let at = points.length - 2; at >= 0; at -= 2) reversed.push(points[at], points[at + 1]);
  return { kind: "gradient", edges, from: side.end, to: end, points: reversed };
}
