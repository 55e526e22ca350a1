/**
 * The layered layout of what is directly in one box: ranks from top to bottom, columns from left to right.
 *
 * The steps are Sugiyama's (ranks, order within ranks, positions), with three changes. A long column is cut, and goes
 * on in the next one at the right. The heaviest path is the spine of its column and exactly straight; everything else
 * is packed towards it, as rigid chains that are aligned where they can be (after Brandes and Köpf, Fast and Simple
 * Horizontal Coordinate Assignment, 2001). Where a wire passes a rank it holds a place of its own there, so it never
 * crosses a box: between its places it only moves sideways in the gap between two ranks, or in the lanes around the
 * columns. inspector/drawing/layered.py does the same for the SVG.
 */

import { type Arrangement, type Contained, type Extent, GUTTER, ITEM_GAP, type Link, RANK_GAP } from "./arrangement.ts";
import { Net } from "./net.ts";
import { pack } from "./packing.ts";
import { draw } from "./routes.ts";

const WIDEST_RANK = 1500;
/** A lower column is not cut. */
const LEAST_COLUMN = 480;

export function arrange({ extents, ranks: given, links, entries, exits, aspect }: Contained): Arrangement {
  const ranks = withoutWideRanks(extents, given);
  const net = new Net(extents, ranks, cutsOf(extents, ranks, links, aspect));
  net.thread(links, entries, exits);
  net.sort();
  pack(net);
  return draw(net, extents);
}

/** Ranks none of which is too wide: the items of one don't depend on each other, so some can go further down. */
function withoutWideRanks(extents: readonly Extent[], ranks: readonly number[]): number[] {
  const rows: number[][] = Array.from({ length: highest(ranks) + 1 }, () => []);
  ranks.forEach((rank, item) => rows[rank].push(item));
  const narrow: number[] = new Array(ranks.length).fill(0);
  let rank = -1;
  for (const row of rows) {
    rank++;
    let width = 0;
    for (const item of row) {
      const needed = extents[item].left + extents[item].right + ITEM_GAP;
      if (width && width + needed > WIDEST_RANK) {
        rank++;
        width = 0;
      }
      width += needed;
      narrow[item] = rank;
    }
  }
  return narrow;
}

/** The first rank of each column, and the number of ranks. */
function cutsOf(
  extents: readonly Extent[],
  ranks: readonly number[],
  links: readonly Link[],
  aspect: number,
): number[] {
  const count = highest(ranks) + 1;
  const heights: number[] = new Array(count).fill(0);
  const widths: number[] = new Array(count).fill(-ITEM_GAP);
  ranks.forEach((rank, item) => {
    const { left, right, height } = extents[item];
    heights[rank] = Math.max(heights[rank], height + RANK_GAP);
    widths[rank] += left + right + ITEM_GAP;
  });
  const ends = runningSums([0, ...heights]);
  const whole = ends[count];
  if (whole <= LEAST_COLUMN) return [0, count];
  const changes: number[] = new Array(count + 1).fill(0);
  for (const { source, target } of links) {
    changes[ranks[source] + 1]++;
    changes[ranks[target] + 1]--;
  }
  const crossing = runningSums(changes);
  const typical = widths.toSorted((a, b) => a - b)[Math.floor(0.8 * (count - 1))] + GUTTER;
  const guess = Math.round(Math.sqrt((aspect * whole) / typical));
  let best = [0, count];
  let least = whole;
  for (const columns of new Set([2, guess - 1, guess, guess + 1, guess + 2].sort((a, b) => a - b))) {
    if (columns < 2 || columns > (whole / LEAST_COLUMN) * 2) continue;
    const cuts = balancedCuts(ends, crossing, columns);
    const score = scoreOf(cuts, ends, widths, crossing, aspect);
    if (score < least) [best, least] = [cuts, score];
  }
  return best;
}

/** How large a picture such cuts make, and how many wires they cut. */
function scoreOf(cuts: number[], ends: number[], widths: number[], crossing: number[], aspect: number): number {
  let width = 0;
  let height = 0;
  let cut = 0;
  for (let column = 0; column + 1 < cuts.length; column++) {
    const [first, end] = [cuts[column], cuts[column + 1]];
    width += widths.slice(first, end).reduce((most, each) => Math.max(most, each)) + GUTTER;
    height = Math.max(height, ends[end] - ends[first]);
    if (column) cut += crossing[first] - 1;
  }
  return Math.max(width / aspect, height) + 5 * cut;
}

/** Cuts into so many columns at most, none much higher than it has to be. */
function balancedCuts(ends: number[], crossing: number[], columns: number): number[] {
  let height = ends[ends.length - 1] / columns;
  for (;;) {
    const cuts = fill(ends, crossing, height);
    if (cuts.length <= columns + 1) return cuts;
    height *= 1.06;
  }
}

/** Cuts where the fewest wires cross, each column at most so high unless one rank is higher. */
function fill(ends: number[], crossing: number[], height: number): number[] {
  const cuts = [0];
  const last = ends.length - 1;
  let start = 0;
  while (ends[last] - ends[start] > height * 1.04) {
    const full = Math.max(start + 1, firstAbove(ends, ends[start] + height * 1.04) - 1);
    const early = Math.min(full, Math.max(start + 1, firstFrom(ends, ends[start] + height * 0.8)));
    let cut = full;
    for (let at = full - 1; at >= early; at--) if (crossing[at] < crossing[cut]) cut = at;
    cuts.push(cut);
    start = cut;
  }
  if (start !== last) cuts.push(last);
  return cuts;
}

/** The first place of a sorted list that holds more than `value`. */
function firstAbove(sorted: number[], value: number): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The first place of a sorted list that holds `value` or more. */
function firstFrom(sorted: number[], value: number): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] >= value) high = middle;
    else low = middle + 1;
  }
  return low;
}

function highest(numbers: readonly number[]): number {
  return numbers.reduce((most, each) => Math.max(most, each), 0);
}

function runningSums(numbers: readonly number[]): number[] {
  let sum = 0;
  return numbers.map((each) => (sum += each));
}
