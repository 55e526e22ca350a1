/** Cells, the content of boxes: a cell has a size, is arranged and then placed. Each kind has its own file. */

import type { Arrangement, Extent } from "./arrangement.ts";
import type { Layout } from "./layout_types.ts";

/** Everything placed so far. Wires between cells come in pieces, the outermost first. */
export interface Canvas extends Omit<Layout, "width" | "height" | "rise"> {
  exits: Map<number, number[][]>;
  links: Map<number, number[]>;
  entries: Map<number, number[][]>;
  /** Open boxes whose content is not placed yet. */
  pending: Pending[];
}

/** Content of a box to be placed with its corner at (x, y). Wires enter at `top` and leave at `bottom`. */
export interface Pending {
  inside: Inside;
  x: number;
  y: number;
  top: number;
  bottom: number;
}

/** Arranged cells of a box, and the indices of its wires in the order of the arrangement. */
export interface Inside {
  cells: Cell[];
  arrangement: Arrangement;
  links: number[];
  entries: number[];
  exits: number[];
}

export interface Cell {
  extent: Extent;
  /** Return the distance from the axis at which a wire to `end` arrives. */
  arrives(wire: number, end: number): number;
  leaves(wire: number, end: number): number;
  /** Place the cell with its axis at x and its top at y. */
  place(x: number, y: number, canvas: Canvas): void;
}

/** Place the cells and wires of a box in the picture. */
export function placeInside({ inside, x, y, top, bottom }: Pending, canvas: Canvas): void {
  const { arrangement } = inside;
  inside.cells.forEach((cell, place) => cell.place(x + arrangement.xs[place], y + arrangement.ys[place], canvas));
  inside.links.forEach((wire, place) => canvas.links.set(wire, moved(arrangement.links[place], x, y)));
  inside.entries.forEach((wire, place) => {
    const points = moved(arrangement.entries[place], x, y);
    addPiece(canvas.entries, wire, [points[0], top, ...points]);
  });
  inside.exits.forEach((wire, place) => {
    const points = moved(arrangement.exits[place], x, y);
    addPiece(canvas.exits, wire, [...points, points[points.length - 2], bottom]);
  });
}

function moved(points: readonly number[], x: number, y: number): number[] {
  return points.map((at, index) => at + (index % 2 ? y : x));
}

function addPiece(pieces: Map<number, number[][]>, wire: number, points: number[]): void {
  const found = pieces.get(wire);
  if (found) found.push(points);
  else pieces.set(wire, [points]);
}
