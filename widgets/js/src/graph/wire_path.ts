/** Path of a wire through its corners. */

import { tenths } from "../format.ts";

/** Radius of a right-angled corner, pixels. */
const CORNER = 6;

/** A path that is parsed once for the canvas and written unchanged into SVG. */
export class Outline {
  private made: Path2D | null = null;

  constructor(readonly data: string) {}

  get path(): Path2D {
    return (this.made ??= new Path2D(this.data));
  }
}

/** Return SVG path data of corners x, y, x, y, ...: right angles are rounded, a diagonal step is an S-curve. */
export function pathData(points: readonly number[]): string {
  const last = points.length / 2 - 1;
  if (last < 1) return "";
  let data = `M${tenths(points[0])} ${tenths(points[1])}`;
  for (let at = 1; at <= last; at++) {
    const [x, y, toX, toY] = points.slice(2 * at - 2, 2 * at + 2);
    if (x !== toX && y !== toY) {
      const middle = tenths((y + toY) / 2);
      data += `C${tenths(x)} ${middle} ${tenths(toX)} ${middle} ${tenths(toX)} ${tenths(toY)}`;
    } else {
      data += (at < last && roundedCorner(points, at)) || `L${tenths(toX)} ${tenths(toY)}`;
    }
  }
  return data;
}

/** Return the path up to and around a corner; "" if the wire does not turn at a right angle there. */
function roundedCorner(points: readonly number[], at: number): string {
  const [beforeX, beforeY, x, y, afterX, afterY] = points.slice(2 * at - 2, 2 * at + 4);
  const turns = (beforeX === x && y === afterY) || (beforeY === y && x === afterX);
  const before = Math.abs(beforeX - x) + Math.abs(beforeY - y);
  const after = Math.abs(afterX - x) + Math.abs(afterY - y);
  const radius = Math.min(CORNER, before / 2, after / 2);
  if (!turns || radius === 0) return "";
  const fromX = x + ((beforeX - x) * radius) / before;
  const fromY = y + ((beforeY - y) * radius) / before;
  const toX = x + ((afterX - x) * radius) / after;
  const toY = y + ((afterY - y) * radius) / after;
  return `L${tenths(fromX)} ${tenths(fromY)}Q${tenths(x)} ${tenths(y)} ${tenths(toX)} ${tenths(toY)}`;
}
