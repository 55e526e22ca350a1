/** Points of a box's wires, computed after its nodes are placed. */

import { GUTTER, LANE, RANK_GAP } from "../../../../inspector/drawing/layout_constants.json";
import { type Arrangement, type Extent } from "./arrangement.ts";
import type { Net, Piece } from "./crossing_reduction.ts";

/** Place columns side by side and ranks below each other, and route each wire through its places. */
export function draw(net: Net, extents: readonly Extent[]): Arrangement {
  return new Drawing(net, extents).arrangement();
}

/** Lane of each wire source (node and shift, as text) at a column, counted from the column. */
type Lanes = Map<string, number>;

/** A wire on its way to another column. */
interface Jump {
  before: Piece;
  after: Piece;
  column: number;
  /** The x at which it leads up again. */
  gutter: number;
  /** Points from its source to the foot of its column. */
  head: number[];
  from: number;
}

/** Positions of columns and ranks, and the points of each wire. */
class Drawing {
  private readonly heights: number[];
  private readonly gutters: Map<number, Lanes>;
  /** Height of the lanes above the columns. */
  private readonly above: number;
  private readonly tops: number[];
  /** Bottom of each column. */
  private readonly floors: number[] = [];
  /** Left edge of each column. */
  private readonly starts: number[] = [];
  private readonly width: number;

  constructor(
    private readonly net: Net,
    private readonly extents: readonly Extent[],
  ) {
    const count = net.cuts[net.cuts.length - 1];
    this.heights = new Array(count).fill(0);
    extents.forEach((extent, item) => {
      this.heights[net.rank[item]] = Math.max(this.heights[net.rank[item]], extent.height);
    });
    this.gutters = this.makeGutters();
    let above = 0;
    for (const lanes of this.gutters.values()) above = Math.max(above, LANE * lanes.size + 4);
    this.above = above;
    this.tops = new Array(count).fill(0);
    this.stackRanks();
    this.width = this.setColumnsSideBySide();
  }

  arrangement(): Arrangement {
    const { net } = this;
    const links: number[][] = [];
    for (const piece of net.links) links[piece.wire] = this.points(piece, true, true);
    const depth = this.drawJumps(links);
    const height = this.floors.reduce((most, floor) => Math.max(most, floor), depth);
    const entries: number[][] = [];
    for (const piece of net.entries) entries[piece.wire] = fromTop(this.points(piece, false, true));
    const exits: number[][] = [];
    for (const piece of net.exits) {
      const points = this.points(piece, true, false);
      extend(points, points[points.length - 2], height);
      exits[piece.wire] = points;
    }
    const ys = this.extents.map((_, item) => this.tops[net.rank[item]]);
    return { width: this.width, height, xs: net.x.slice(0, net.items), ys, links, entries, exits };
  }

  /**
   * Assign lanes. The wire that leads furthest right has the outermost lane, so that wires do not cross above the
   * column.
   */
  private makeGutters(): Map<number, Lanes> {
    const { net } = this;
    const reach = new Map<number, Map<string, number>>();
    for (const { before, after } of net.jumps) {
      const column = net.column[net.rank[after.nodes[0]]];
      let lanes = reach.get(column);
      if (!lanes) reach.set(column, (lanes = new Map()));
      const start = startOf(before);
      lanes.set(start, Math.max(lanes.get(start) ?? -Infinity, net.x[after.nodes[0]]));
    }
    const gutters = new Map<number, Lanes>();
    for (const [column, lanes] of reach) {
      const sorted = [...lanes].sort(([, a], [, b]) => a - b);
      gutters.set(column, new Map(sorted.map(([start], lane) => [start, lane])));
    }
    return gutters;
  }

  /** Set the tops of the ranks. The gap between two ranks is wider if wires move far sideways in it. */
  private stackRanks(): void {
    const { cuts, layers } = this.net;
    for (let column = 0; column + 1 < cuts.length; column++) {
      let y = this.above;
      for (let rank = cuts[column]; rank < cuts[column + 1]; rank++) {
        this.tops[rank] = y;
        y += this.heights[rank];
        if (rank + 1 < cuts[column + 1]) y += RANK_GAP + this.fan(layers[rank]);
      }
      this.floors.push(y);
    }
  }

  private fan(layer: readonly number[]): number {
    const { x, down } = this.net;
    if (layer.length === 1 && down[layer[0]].length === 1) return 0;
    let furthest = 0;
    for (const node of layer) {
      for (const below of down[node]) furthest = Math.max(furthest, Math.abs(x[below.node] - x[node] - below.shift));
    }
    return Math.min(48, Math.max(0, (furthest - 40) / 9));
  }

  private setColumnsSideBySide(): number {
    const { net } = this;
    let edge = 0;
    for (let column = 0; column + 1 < net.cuts.length; column++) {
      const nodes = net.layers.slice(net.cuts[column], net.cuts[column + 1]).flat();
      if (column) edge += GUTTER + LANE * (this.gutters.get(column)?.size ?? 0);
      const start = edge;
      const shift = start - nodes.reduce((least, node) => Math.min(least, net.x[node] - net.left[node]), Infinity);
      for (const node of nodes) net.x[node] += shift;
      this.starts.push(start);
      edge = nodes.reduce((most, node) => Math.max(most, net.x[node] + net.right[node]), -Infinity);
    }
    return edge;
  }

  /**
   * Return the points from the source's foot (or the column's first rank) through the reserved places to the target's
   * top.
   */
  private points(piece: Piece, atSource: boolean, atTarget: boolean): number[] {
    const { net, tops, heights } = this;
    const points: number[] = [];
    piece.nodes.forEach((node, number) => {
      const x = net.x[node];
      const top = tops[net.rank[node]];
      const foot = top + heights[net.rank[node]];
      if (node >= net.items) {
        extend(points, x, top);
        extend(points, x, foot);
      } else if (atSource && number === 0) {
        extend(points, x + piece.leaves, top + this.extents[node].foot);
        extend(points, x + piece.leaves, foot);
      } else if (atTarget) extend(points, x + piece.arrives, top);
    });
    return points;
  }

  /** Route wires from the foot of one column through the gutter to the top of another. Return the lowest y. */
  private drawJumps(links: number[][]): number {
    const { net } = this;
    const jumps = net.jumps.map(({ before, after }): Jump => {
      const head = this.points(before, true, false);
      const column = net.column[net.rank[after.nodes[0]]];
      const gutter = this.starts[column] - GUTTER / 2 - LANE * this.lane(column, before);
      return { before, after, column, gutter, head, from: head[head.length - 2] };
    });
    jumps.sort(
      (a, b) =>
        a.gutter - b.gutter ||
        b.from - a.from ||
        a.before.nodes[0] - b.before.nodes[0] ||
        a.before.leaves - b.before.leaves ||
        a.column - b.column,
    );
    const floor = new LowerLanes();
    let lowest = 0;
    for (const { before, after, column, gutter, head, from } of jumps) {
      const here = net.column[net.rank[before.nodes[0]]];
      const under = this.floors.slice(here, column).reduce((most, each) => Math.max(most, each)) + 8;
      const y = floor.take(startOf(before), from, gutter, under);
      lowest = Math.max(lowest, y);
      const tail = this.points(after, false, true);
      const above = this.above - 4 - LANE * this.lane(column, before);
      extend(head, from, y);
      extend(head, gutter, y);
      extend(head, gutter, above);
      extend(head, tail[0], above);
      for (let at = 0; at < tail.length; at += 2) extend(head, tail[at], tail[at + 1]);
      links[after.wire] = head;
    }
    return lowest;
  }

  private lane(column: number, before: Piece): number {
    return this.gutters.get(column)?.get(startOf(before)) as number;
  }
}

/** Lanes below the columns. Wires from the same place to the same gutter share a lane. */
class LowerLanes {
  /** For each lane, the x from which it is free, and its y. */
  private readonly lanes: { free: number; y: number }[] = [];
  private readonly taken = new Map<string, number>();

  /** Return the y of the lane for a wire that leads down at `from` and up at `gutter`. */
  take(start: string, from: number, gutter: number, floor: number): number {
    const way = `${start} ${gutter}`;
    const known = this.taken.get(way);
    if (known !== undefined) return known;
    const lane = this.lanes.find(({ free, y }) => free < from - LANE && y >= floor);
    const y = lane?.y ?? this.lanes.reduce((most, other) => Math.max(most, other.y + LANE), floor);
    if (lane) lane.free = gutter;
    else this.lanes.push({ free: gutter, y });
    this.taken.set(way, y);
    return y;
  }
}

function startOf(piece: Piece): string {
  return `${piece.nodes[0]} ${piece.leaves}`;
}

/** Add a point, replacing the last one if it is on a straight vertical line to the new one. */
function extend(points: number[], x: number, y: number): void {
  const end = points.length;
  if (end && points[end - 2] === x && points[end - 1] === y) return;
  if (end > 2 && points[end - 2] === x && points[end - 4] === x) points[end - 1] = y;
  else points.push(x, y);
}

/** Return the points relative to the content's top. */
function fromTop(points: number[]): number[] {
  const [x, y] = points;
  if (y === 0) return points;
  if (points.length > 2 && points[2] === x) return [x, 0, ...points.slice(2)];
  return [x, 0, ...points];
}
