/** Routing of a box's wires through its ranks, and the order within each rank. */

import { SWEEPS } from "../../../../inspector/drawing/layout_constants.json";
import { firstWhere } from "../binary_search.ts";
import type { Extent, Link, Port } from "./arrangement.ts";

/** A neighbour in the rank above or below. `shift`: x of the lower node minus x of the upper one if aligned. */
export interface Near {
  node: number;
  shift: number;
}

/** The part of a wire within one column: the nodes on its way, and its shift at both ends. */
export interface Piece {
  /** Index of the wire in its list. */
  wire: number;
  nodes: number[];
  leaves: number;
  arrives: number;
}

/** A graph whose edges span one rank. Its nodes are items, and the places that wires reserve in the ranks they pass. */
export class Net {
  /** Number of items; nodes below this number are items. */
  readonly items: number;
  readonly left: number[];
  readonly right: number[];
  readonly up: Near[][];
  readonly down: Near[][];
  /** Column of each rank. */
  readonly column: number[] = [];
  /** Weight of each node: the heaviest wire of an item, or the wire of a place. */
  readonly weight: number[];
  readonly links: Piece[] = [];
  /** Wires from one column to another. */
  readonly jumps: { before: Piece; after: Piece }[] = [];
  readonly entries: Piece[] = [];
  readonly exits: Piece[] = [];
  layers: number[][] = [];
  placeOf: number[] = [];
  x: number[] = [];

  constructor(
    extents: readonly Extent[],
    readonly rank: number[],
    readonly cuts: readonly number[],
  ) {
    this.items = extents.length;
    this.left = extents.map((extent) => extent.left);
    this.right = extents.map((extent) => extent.right);
    this.up = extents.map(() => []);
    this.down = extents.map(() => []);
    for (let column = 0; column + 1 < cuts.length; column++) {
      for (let rank = cuts[column]; rank < cuts[column + 1]; rank++) this.column.push(column);
    }
    this.weight = new Array(extents.length).fill(0);
  }

  /** Reserve places for each wire. */
  thread(links: readonly Link[], entries: readonly Port[], exits: readonly Port[]): void {
    entries.forEach((port, wire) => this.threadEntry(port, wire));
    const leaving = [
      ...links.map((link, wire) => ({ output: link.output, thread: () => this.threadLink(link, wire) })),
      ...exits.map((port, wire) => ({ output: port.output, thread: () => this.threadExit(port, wire) })),
    ];
    leaving.sort((a, b) => a.output - b.output);
    for (const { thread } of leaving) thread();
  }

  private threadEntry({ item, shift, weight }: Port, wire: number): void {
    this.weight[item] = Math.max(this.weight[item], weight);
    const rank = this.rank[item];
    const nodes = [...this.passes(this.cuts[this.column[rank]], rank, weight), item];
    this.entries.push(this.piece(wire, nodes, 0, shift));
  }

  private threadExit({ item, shift, weight }: Port, wire: number): void {
    this.weight[item] = Math.max(this.weight[item], weight);
    const rank = this.rank[item];
    const nodes = [item, ...this.passes(rank + 1, this.cuts[this.column[rank] + 1], weight)];
    this.exits.push(this.piece(wire, nodes, shift, 0));
  }

  private threadLink({ source, target, leaves, arrives, weight }: Link, wire: number): void {
    this.weight[source] = Math.max(this.weight[source], weight);
    this.weight[target] = Math.max(this.weight[target], weight);
    const [first, last] = [this.rank[source], this.rank[target]];
    const [here, there] = [this.column[first], this.column[last]];
    if (here === there) {
      const nodes = [source, ...this.passes(first + 1, last, weight), target];
      this.links.push(this.piece(wire, nodes, leaves, arrives));
    } else {
      const nodes = [source, ...this.passes(first + 1, this.cuts[here + 1], weight)];
      const rest = [...this.passes(this.cuts[there], last, weight), target];
      const before = this.piece(wire, nodes, leaves, 0);
      this.jumps.push({ before, after: this.piece(wire, rest, 0, arrives) });
    }
  }

  /** Add nodes for a wire in the ranks from `first` to before `end`. */
  private passes(first: number, end: number, weight: number): number[] {
    const nodes: number[] = [];
    for (let rank = first; rank < end; rank++) {
      nodes.push(this.rank.length);
      this.rank.push(rank);
      this.left.push(1);
      this.right.push(1);
      this.weight.push(weight);
      this.up.push([]);
      this.down.push([]);
    }
    return nodes;
  }

  private piece(wire: number, nodes: number[], leaves: number, arrives: number): Piece {
    for (let number = 0; number + 1 < nodes.length; number++) {
      const [above, below] = [nodes[number], nodes[number + 1]];
      const shift = (number === 0 ? leaves : 0) - (number === nodes.length - 2 ? arrives : 0);
      this.down[above].push({ node: below, shift });
      this.up[below].push({ node: above, shift });
    }
    return { wire, nodes, leaves, arrives };
  }

  /** Order the nodes of each rank so that few wires cross. */
  sort(): void {
    this.placeOf = new Array(this.rank.length).fill(0);
    this.takeFirstOrder(false);
    let fewest = this.crossings();
    if (!fewest) return;
    let best = this.layers;
    for (const mirrored of [false, true]) {
      this.takeFirstOrder(mirrored);
      for (let sweep = 0; sweep < SWEEPS; sweep++) {
        this.sweep(sweep % 2 === 1);
        const crossings = this.crossings();
        if (crossings < fewest) {
          best = this.layers.map((layer) => [...layer]);
          fewest = crossings;
        }
        if (!crossings) break;
      }
    }
    this.layers = best;
    this.notePlaces();
  }

  /**
   * Order the nodes by a depth-first traversal from the top. Most graphs are nearly trees, for which this order has no
   * crossings.
   */
  private takeFirstOrder(mirrored: boolean): void {
    const { rank, up, down } = this;
    const layers: number[][] = Array.from({ length: this.cuts[this.cuts.length - 1] }, () => []);
    const seen = new Uint8Array(rank.length);
    const stack: number[] = [];
    for (let node = rank.length - 1; node >= 0; node--) if (!up[node].length) stack.push(node);
    stack.sort((a, b) => rank[b] - rank[a] || b - a);
    while (stack.length) {
      const node = stack.pop() as number;
      if (seen[node]) continue;
      seen[node] = 1;
      layers[rank[node]].push(node);
      const below = down[node];
      for (let at = 0; at < below.length; at++) stack.push(below[mirrored ? at : below.length - 1 - at].node);
    }
    if (mirrored) for (const layer of layers) layer.reverse();
    this.layers = layers;
    this.notePlaces();
  }

  /** Order each rank by the mean position of its neighbours in the previous rank. */
  private sweep(upwards: boolean): void {
    const layers = upwards ? this.layers.toReversed() : this.layers;
    for (const layer of layers) if (layer.length > 1) this.sortLayer(layer, upwards);
  }

  private sortLayer(layer: number[], upwards: boolean): void {
    const { placeOf } = this;
    const neighbours = upwards ? this.down : this.up;
    const tilt = upwards ? -0.001 : 0.001; // wires to the same box keep their order from left to right
    const keys = new Map<number, number>();
    for (const node of layer) {
      const near = neighbours[node];
      let sum = 0;
      for (const other of near) sum += placeOf[other.node] + other.shift * tilt;
      keys.set(node, near.length ? sum / near.length : placeOf[node]);
    }
    layer.sort((a, b) => (keys.get(a) as number) - (keys.get(b) as number));
    layer.forEach((node, place) => {
      placeOf[node] = place;
    });
  }

  private notePlaces(): void {
    for (const layer of this.layers) {
      layer.forEach((node, place) => {
        this.placeOf[node] = place;
      });
    }
  }

  private crossings(): number {
    let count = 0;
    for (const layer of this.layers) if (layer.length > 1) count += this.crossingsBelow(layer);
    return count;
  }

  /** Return how many wires below a layer cross: for each wire, those that start left of it and end right of it. */
  private crossingsBelow(layer: number[]): number {
    const ends: Near[] = []; // sorted; `node` is a position in the rank
    let count = 0;
    for (const node of layer) {
      const found = this.down[node].map((below) => ({ node: this.placeOf[below.node], shift: below.shift }));
      if (found.length > 1) found.sort(byPlace);
      for (const end of found) {
        if (!ends.length || byPlace(ends[ends.length - 1], end) <= 0) ends.push(end);
        else {
          count += ends.length - firstAfter(ends, { node: end.node, shift: Infinity });
          ends.splice(firstAfter(ends, end), 0, end);
        }
      }
    }
    return count;
  }

  /** Return the lower neighbour with the heaviest wire; of equally heavy ones, the middle one. */
  main(node: number): Near {
    const below = this.down[node];
    if (below.length === 1) return below[0];
    let heaviest = 0;
    for (const other of below) heaviest = Math.max(heaviest, this.weight[other.node]);
    const equal = below.filter((other) => this.weight[other.node] === heaviest);
    const { placeOf } = this;
    equal.sort((a, b) => placeOf[a.node] - placeOf[b.node] || a.node - b.node || a.shift - b.shift);
    return equal[equal.length >> 1];
  }
}

function byPlace(a: Near, b: Near): number {
  return a.node - b.node || a.shift - b.shift;
}

/** Return the first index of a sorted list with an entry above `end`. */
function firstAfter(sorted: readonly Near[], end: Near): number {
  return firstWhere(sorted.length, (at) => byPlace(sorted[at], end) > 0);
}
