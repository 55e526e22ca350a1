/** Horizontal positions of the nodes of a column: a straight spine, and rigid chains packed towards it. */

import { ITEM_GAP, WIDE, WIRE_GAP } from "../../../../inspector/drawing/layout_constants.json";
import type { Near, Net } from "./crossing_reduction.ts";

const SPINE = 0;

/** Side of the spine that a chain is on. */
type Side = -1 | 0 | 1;

interface Row {
  [-1]: number[];
  [0]: number[];
  [1]: number[];
}

/** Minimum distance from one chain to the next one outwards. */
interface Distance {
  chain: number;
  least: number;
}

/** Chains on one side of the spine, from the spine outwards. */
interface Pushed {
  sign: -1 | 1;
  order: number[];
  distances: Map<number, Distance[]>;
}

/** Set the x of each node, starting with the spine of its column. */
export function pack(net: Net): void {
  net.x = new Array(net.rank.length).fill(0);
  const jumps = net.jumps.toSorted((a, b) => net.weight[a.after.nodes[0]] - net.weight[b.after.nodes[0]]);
  const afterJump = new Map(jumps.map(({ before, after }) => [before.nodes[before.nodes.length - 1], after.nodes[0]]));
  const entered = new Set(net.entries.map((piece) => piece.nodes[0]));
  let start: number | undefined;
  for (let column = 0; column + 1 < net.cuts.length; column++) {
    const [first, end] = [net.cuts[column], net.cuts[column + 1]];
    const layers = net.layers.slice(first, end);
    if (start === undefined || net.rank[start] !== first) start = heaviest(net, layers[0], entered);
    const spine = spineFrom(net, start);
    if (spine.length < layers.length || layers.some((layer) => layer.length > 1))
      new Column(net, layers, spine).place();
    start = afterJump.get(spine[spine.length - 1]);
  }
}

/** Return the node in a column's first rank with the heaviest wire from outside, or else the heaviest node. */
function heaviest(net: Net, layer: readonly number[], entered: ReadonlySet<number>): number {
  let best = layer[0];
  for (const node of layer) {
    const before = Number(entered.has(node)) - Number(entered.has(best)) || net.weight[node] - net.weight[best];
    if (before > 0) best = node;
  }
  return best;
}

/** Return the heaviest path from a node down to the end of its column. */
function spineFrom(net: Net, start: number): number[] {
  const spine = [start];
  let node = start;
  while (net.down[node].length) {
    node = net.main(node).node;
    spine.push(node);
  }
  return spine;
}

/** The nodes of one column as rigid chains, pushed towards the spine from both sides. */
class Column {
  private readonly spine: ReadonlySet<number>;
  private chain = new Map<number, number>();
  /** x of each node relative to its chain. */
  private offset = new Map<number, number>();
  private chains: number[][] = [];

  constructor(
    private readonly net: Net,
    private readonly layers: readonly number[][],
    spine: readonly number[],
  ) {
    this.spine = new Set(spine);
  }

  /** Set `net.x` of the column's nodes. */
  place(): void {
    this.makeChains(this.aligned());
    let positions = this.packed();
    if (!positions) {
      // The chains cross so that no position satisfies all of them. Without any alignment every node is a chain, which
      // is always possible.
      this.makeChains(new Map());
      positions = this.packed() as number[];
    }
    for (const [node, chain] of this.chain) this.net.x[node] = positions[chain] + this.offsetOf(node);
  }

  private chainOf(node: number): number {
    return this.chain.get(node) as number;
  }

  private offsetOf(node: number): number {
    return this.offset.get(node) as number;
  }

  /**
   * Return the node that each node is aligned with below, without crossings. Wires have precedence over boxes, the
   * spine over all.
   */
  private aligned(): Map<number, Near> {
    const { net, spine } = this;
    const aligned = new Map<number, Near>();
    for (const layer of this.layers.slice(0, -1)) {
      const wanted = new Map<number, { priority: number; node: number; shift: number }>();
      for (const node of layer) {
        if (!net.down[node].length) continue;
        const { node: below, shift } = net.main(node);
        if (spine.has(node) !== spine.has(below) || this.tooWide(node, below)) continue;
        const priority = spine.has(node) ? 4 : 1 + Number(node >= net.items) + Number(below >= net.items);
        const other = wanted.get(below);
        if (!other || other.priority < priority) wanted.set(below, { priority, node, shift });
      }
      const candidates = Array.from(wanted, ([below, { priority, node, shift }]) => {
        return { place: net.placeOf[node], end: net.placeOf[below], below, priority, node, shift };
      });
      candidates.sort((a, b) => a.place - b.place || a.end - b.end);
      const accepted: typeof candidates = [];
      for (const candidate of candidates) {
        let last = accepted[accepted.length - 1];
        while (last && last.end > candidate.end && last.priority < candidate.priority) {
          accepted.pop();
          last = accepted[accepted.length - 1];
        }
        if (!last || last.end < candidate.end) accepted.push(candidate);
      }
      for (const { node, below, shift } of accepted) aligned.set(node, { node: below, shift });
    }
    return aligned;
  }

  /** Return whether the pair is a wire and a wide box off the spine: aligning them would push other wires apart. */
  private tooWide(node: number, below: number): boolean {
    const { net } = this;
    if (node < net.items === below < net.items || this.spine.has(node)) return false;
    const item = Math.min(node, below);
    return net.left[item] + net.right[item] > WIDE;
  }

  /**
   * Make the chains. The first is the spine, with every node at 0: its wires bend around a wide box and return to it.
   */
  private makeChains(aligned: ReadonlyMap<number, Near>): void {
    this.chain = new Map();
    this.offset = new Map();
    this.chains = [[...this.spine].sort((a, b) => this.net.rank[a] - this.net.rank[b])];
    for (const node of this.chains[SPINE]) {
      this.chain.set(node, SPINE);
      this.offset.set(node, 0);
    }
    for (const layer of this.layers) {
      for (const node of layer) if (!this.chain.has(node)) this.makeChain(node, aligned);
    }
  }

  private makeChain(top: number, aligned: ReadonlyMap<number, Near>): void {
    const nodes: number[] = [];
    let node = top;
    let offset = 0;
    for (;;) {
      this.chain.set(node, this.chains.length);
      this.offset.set(node, offset);
      nodes.push(node);
      const below = aligned.get(node);
      if (!below) break;
      node = below.node;
      offset += below.shift;
    }
    this.chains.push(nodes);
  }

  /** Return the x of each chain: as close to the spine as possible, then moved towards its neighbours. */
  private packed(): number[] | null {
    const sides = this.sides();
    const positions: number[] = new Array(this.chains.length).fill(0);
    const pushed: Pushed[] = [];
    for (const sign of [-1, 1] as const) {
      const push = this.push(
        sides.map((row) => row[sign]),
        sign,
        positions,
      );
      if (!push) return null;
      pushed.push(push);
    }
    for (const push of pushed) this.loosen(push, positions);
    return positions;
  }

  /**
   * Return the nodes left and right of the spine in each rank, from the spine outwards. Below the end of the spine, a
   * chain stays on the side of its upper neighbour.
   */
  private sides(): Row[] {
    const side = new Map<number, Side>([[SPINE, 0]]);
    return this.layers.map((layer) => {
      const middle = layer.findIndex((node) => this.spine.has(node));
      const row: Row = { [-1]: [], [0]: [], [1]: [] };
      layer.forEach((node, place) => {
        const chain = this.chainOf(node);
        let found = side.get(chain);
        if (found === undefined) {
          found = middle >= 0 ? (place < middle ? -1 : 1) : this.sideAbove(node, side);
          side.set(chain, found);
        }
        row[found].push(node);
      });
      row[-1].reverse();
      return row;
    });
  }

  private sideAbove(node: number, side: ReadonlyMap<number, Side>): Side {
    let sum = 0;
    for (const above of this.net.up[node]) sum += side.get(this.chain.get(above.node) ?? SPINE) ?? 0;
    return sum < 0 ? -1 : 1;
  }

  /** Set the positions of the chains on one side. Return null if they cross in a cycle. */
  private push(rows: readonly number[][], sign: -1 | 1, positions: number[]): Pushed | null {
    const { net } = this;
    const [outer, inner] = sign > 0 ? [net.right, net.left] : [net.left, net.right];
    const distances = new Map<number, Distance[]>();
    const missing = new Map<number, number>();
    const pushOut = (chain: number, least: number) => {
      positions[chain] = sign * Math.max(sign * positions[chain], least);
    };
    rows.forEach((row, number) => {
      let previous = row.length ? this.layers[number].find((node) => this.spine.has(node)) : undefined;
      for (const node of row) {
        const chain = this.chainOf(node);
        if (!missing.has(chain)) missing.set(chain, 0);
        if (previous === undefined) pushOut(chain, ITEM_GAP / 2 + inner[node] - sign * this.offsetOf(node));
        else {
          const gap = node < net.items && previous < net.items ? ITEM_GAP : WIRE_GAP;
          const aside = sign * (this.offsetOf(previous) - this.offsetOf(node));
          const least = outer[previous] + gap + inner[node] + aside;
          const before = this.chainOf(previous);
          if (before === SPINE) pushOut(chain, least);
          else {
            const after = distances.get(before) ?? [];
            after.push({ chain, least });
            distances.set(before, after);
            missing.set(chain, (missing.get(chain) as number) + 1);
          }
        }
        previous = node;
      }
    });
    const order: number[] = [];
    for (const [chain, count] of missing) if (!count) order.push(chain);
    for (const chain of order) {
      for (const after of distances.get(chain) ?? []) {
        pushOut(after.chain, sign * positions[chain] + after.least);
        const count = (missing.get(after.chain) as number) - 1;
        missing.set(after.chain, count);
        if (!count) order.push(after.chain);
      }
    }
    return order.length === missing.size ? { sign, order, distances } : null;
  }

  /** Move chains outwards, if there is space, to align them with their neighbours. */
  private loosen({ sign, order, distances }: Pushed, positions: number[]): void {
    for (const chain of order.toReversed()) {
      const wanted = this.wantedPlaces(chain, sign, positions);
      if (!wanted.length) continue;
      let room = Infinity;
      for (const after of distances.get(chain) ?? []) room = Math.min(room, sign * positions[after.chain] - after.least);
      if (room === Infinity) room = wanted[wanted.length - 1];
      const middle = wanted[(wanted.length - 1) >> 1];
      positions[chain] = sign * Math.max(sign * positions[chain], Math.min(middle, room));
    }
  }

  /** Return the positions at which a chain is aligned with one of its neighbours further out, sorted. */
  private wantedPlaces(chain: number, sign: -1 | 1, positions: readonly number[]): number[] {
    const { net } = this;
    const wanted: number[] = [];
    for (const node of this.chains[chain]) {
      for (const [neighbours, way] of [[net.up[node], 1] as const, [net.down[node], -1] as const]) {
        for (const { node: other, shift } of neighbours) {
          const its = this.chain.get(other) ?? chain;
          if (its === chain) continue;
          wanted.push(sign * (positions[its] + this.offsetOf(other) + way * shift - this.offsetOf(node)));
        }
      }
    }
    return wanted.sort((a, b) => a - b);
  }
}
