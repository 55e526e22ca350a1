/** Spatial index of the pieces of wires. Whole wires have bounds that overlap by the thousand; pieces are thin. */

import type { PlacedWire, Rect, Size } from "../layout/layout_types.ts";
import { Grid } from "./spatial_index.ts";

export class WireIndex {
  private readonly grid: Grid;
  /** Wire of each piece. */
  private readonly wireOf: number[] = [];

  constructor(wires: readonly Pick<PlacedWire, "points">[], { width, height }: Size) {
    const pieces: Rect[] = [];
    wires.forEach(({ points }, wire) => {
      for (let at = 2; at < points.length; at += 2) {
        pieces.push(around(points[at - 2], points[at - 1], points[at], points[at + 1]));
        this.wireOf.push(wire);
      }
    });
    this.grid = new Grid(pieces, width, height);
  }

  /** Return the wires that may be within this distance of a point. Curves stay within the bounds of their pieces. */
  near(x: number, y: number, distance: number): Set<number> {
    const area = { x: x - distance, y: y - distance, width: 2 * distance, height: 2 * distance };
    return new Set(this.grid.search(area).map((piece) => this.wireOf[piece]));
  }
}

function around(x: number, y: number, toX: number, toY: number): Rect {
  return { x: Math.min(x, toX), y: Math.min(y, toY), width: Math.abs(toX - x), height: Math.abs(toY - y) };
}
