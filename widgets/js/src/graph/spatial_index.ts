/** Spatial index of rectangles, for finding the visible ones and the ones under the pointer among 100,000. */

import type { Rect } from "../layout/layout_types.ts";

/** Average number of rectangles per cell. */
const PER_CELL = 8;
const SMALLEST_CELL = 64;

export class Grid {
  private readonly cell: number;
  private readonly columns: number;
  private readonly rows: number;
  private readonly starts: Int32Array;
  private readonly members: Int32Array;
  /** Last search that found each rectangle, which avoids duplicates from several cells. */
  private readonly foundBy: Uint32Array;
  private searches = 0;

  constructor(
    private readonly rects: readonly Rect[],
    width: number,
    height: number,
  ) {
    this.cell = Math.max(SMALLEST_CELL, Math.sqrt((width * height * PER_CELL) / Math.max(1, rects.length)));
    this.columns = Math.max(1, Math.ceil(width / this.cell));
    this.rows = Math.max(1, Math.ceil(height / this.cell));
    this.foundBy = new Uint32Array(rects.length);
    this.starts = new Int32Array(this.columns * this.rows + 1);
    rects.forEach((rect) => this.cellsOf(rect, (cell) => this.starts[cell + 1]++));
    for (let cell = 1; cell < this.starts.length; cell++) this.starts[cell] += this.starts[cell - 1];
    this.members = new Int32Array(this.starts[this.starts.length - 1]);
    const next = this.starts.slice();
    rects.forEach((rect, index) =>
      this.cellsOf(rect, (cell) => {
        this.members[next[cell]++] = index;
      }),
    );
  }

  /** Return the indices of the rectangles that touch this one. */
  search(area: Rect): number[] {
    const found: number[] = [];
    const search = ++this.searches;
    this.cellsOf(area, (cell) => {
      for (let at = this.starts[cell]; at < this.starts[cell + 1]; at++) {
        const index = this.members[at];
        if (this.foundBy[index] === search) continue;
        this.foundBy[index] = search;
        if (touch(this.rects[index], area)) found.push(index);
      }
    });
    return found;
  }

  private cellsOf(rect: Rect, visit: (cell: number) => void): void {
    const left = this.clamped(rect.x, this.columns);
    const right = this.clamped(rect.x + rect.width, this.columns);
    const top = this.clamped(rect.y, this.rows);
    const bottom = this.clamped(rect.y + rect.height, this.rows);
    for (let row = top; row <= bottom; row++) {
      for (let column = left; column <= right; column++) visit(row * this.columns + column);
    }
  }

  private clamped(position: number, cells: number): number {
    return Math.max(0, Math.min(cells - 1, Math.floor(position / this.cell)));
  }
}

export function touch(one: Rect, other: Rect): boolean {
  return (
    one.x <= other.x + other.width &&
    other.x <= one.x + one.width &&
    one.y <= other.y + other.height &&
    other.y <= one.y + one.height
  );
}

export function inside(rect: Rect, x: number, y: number, margin = 0): boolean {
  return (
    x >= rect.x - margin &&
    x <= rect.x + rect.width + margin &&
    y >= rect.y - margin &&
    y <= rect.y + rect.height + margin
  );
}

/** Return the rectangle extended by `margin` on each side. */
export function grown(rect: Rect, margin: number): Rect {
  return { x: rect.x - margin, y: rect.y - margin, width: rect.width + 2 * margin, height: rect.height + 2 * margin };
}

/** Return the interpolation between two rectangles. */
export function between(from: Rect, to: Rect, share: number): Rect {
  return {
    x: from.x + (to.x - from.x) * share,
    y: from.y + (to.y - from.y) * share,
    width: from.width + (to.width - from.width) * share,
    height: from.height + (to.height - from.height) * share,
  };
}
