/** Pills and stubs: what is placed beside a task, a card or a row, and the wires to them. */

import type { Canvas } from "./cells.ts";
import type { PlacedWire, Rect } from "./placed.ts";
import { textWidth } from "./text_width.ts";

export const PILL_HEIGHT = 16;
const PILL_LINE = 19;
/** Between a task and its pills. */
const BESIDE = 8;
export const TASK_HEIGHT = 20;

/** A pill or stub to be placed beside its user. `edges` are those that its wire stands for. */
export interface Side {
  kind: "pill" | "parameter" | "to" | "from";
  tasks: number[];
  label: string;
  edges: number[];
  /** What is at the other end of its wire: a task, or a closed box as `~box.id`. */
  end: number;
}

export function sideWidth(side: Side): number {
  return Math.ceil(textWidth(side.label)) + (side.kind === "pill" ? 20 : 24) + 8;
}

export function heightBeside(left: readonly Side[], right: readonly Side[]): number {
  return PILL_LINE * (Math.max(left.length, right.length, 1) - 1) + TASK_HEIGHT;
}

export function roomBeside(sides: readonly Side[]): number {
  return sides.reduce((most, side) => Math.max(most, sideWidth(side) + BESIDE), 0);
}

/** Stacks pills and stubs beside a task or card; those below the first hang on a rail. */
export function placeSides(end: number, sides: readonly Side[], beside: Rect, sign: -1 | 1, canvas: Canvas): void {
  const edge = sign > 0 ? beside.x + beside.width : beside.x;
  const middle = beside.y + TASK_HEIGHT / 2;
  const near = edge + sign * BESIDE;
  const rail = edge + (sign * BESIDE) / 2;
  sides.forEach((side, line) => {
    const center = middle + line * PILL_LINE;
    const width = sideWidth(side);
    const x = sign > 0 ? near : near - width;
    placeSide(end, side, { x, y: center - PILL_HEIGHT / 2, width, height: PILL_HEIGHT }, canvas, false);
    const points = line ? [edge, middle, rail, middle, rail, center, near, center] : [edge, middle, near, middle];
    canvas.wires.push(wireTo(side, side.edges, end, points));
  });
}

export function placeSide(end: number, { kind, tasks, label }: Side, rect: Rect, canvas: Canvas, dot: boolean): void {
  if (kind === "pill") canvas.pills.push({ tasks, user: end, rect, label, dot });
  else canvas.stubs.push({ kind, task: end, others: tasks, rect, label, dot });
}

/** The wire between a task or card and a pill or stub beside it: `points` lead to that. */
export function wireTo(side: Side, edges: number[], end: number, points: number[]): PlacedWire {
  if (side.kind !== "from") {
    const kind = side.kind === "to" ? "gradient" : "parameter";
    return { kind, edges, from: end, to: side.end, points };
  }
  const reversed: number[] = [];
  for (let at = points.length - 2; at >= 0; at -= 2) reversed.push(points[at], points[at + 1]);
  return { kind: "gradient", edges, from: side.end, to: end, points: reversed };
}
