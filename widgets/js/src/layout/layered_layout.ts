/**
 * The layered layout of the direct content of one box: ranks from top to bottom, columns from left to right.
 *
 * The steps are Sugiyama's (ranks, order within ranks, positions), with three changes. A long column is cut and
 * continued in the next one at its right. The heaviest path is the spine of its column and exactly straight; everything
 * else is packed towards it, as rigid chains that are aligned if possible (after Brandes and Köpf, Fast and Simple
 * Horizontal Coordinate Assignment, 2001). A wire reserves a place in each rank it passes, so it never crosses a box:
 * between its places it only moves sideways in the gap between two ranks, or in the lanes around the columns.
 * inspector/drawing/layered_layout.py does the same for the SVG.
 */

import {
  GUTTER, HALVINGS, ITEM_GAP, RANK_GAP, WIDEST_RANK, WIDEST_SHAPE,
} from "../../../../inspector/drawing/layout_constants.json";
import { countBelow, countUpTo } from "../binary_search.ts";
import { type Arrangement, type Contained, type Extent, type Link } from "./arrangement.ts";
import { Net } from "./crossing_reduction.ts";
import { pack } from "./column_positions.ts";
import { draw } from "./wire_routes.ts";

export function arrange({ extents, ranks: originalRanks, links, entries, exits, tall }: Contained): Arrangement {
  const ranks = withoutWideRanks(extents, originalRanks);
  const net = new Net(extents, ranks, cutsOf(extents, ranks, links, tall));
  net.thread(links, entries, exits);
  net.sort();
  pack(net);
  return draw(net, extents);
}

/** Return ranks that are not too wide. Items of one rank do not depend on each other, so some of them can move down. */
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

/**
 * Return the first rank of each column, followed by the number of ranks; the columns are as few as the maximum height
 * allows.
 */
function cutsOf(extents: readonly Extent[], ranks: readonly number[], links: readonly Link[], tall: number): number[] {
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
  if (whole <= tall + RANK_GAP) return [0, count];
  const changes: number[] = new Array(count + 1).fill(0);
  for (const { source, target } of links) {
    changes[ranks[source] + 1]++;
    changes[ranks[target] + 1]--;
  }
  const typical = widths.toSorted((a, b) => a - b)[Math.floor(0.8 * (count - 1))] + GUTTER;
  const most = Math.max(tall, Math.sqrt((whole * typical) / WIDEST_SHAPE)) + RANK_GAP;
  return balancedCuts(ends, runningSums(changes), most);
}

/** Return as few columns as possible with heights up to `most`, and with similar heights. */
function balancedCuts(ends: readonly number[], crossing: readonly number[], most: number): number[] {
  let cuts = fill(ends, crossing, most);
  let [low, high] = [ends[ends.length - 1] / (cuts.length - 1), most];
  for (let left = HALVINGS; left; left--) {
    const middle = (low + high) / 2;
    const lower = fill(ends, crossing, middle);
    if (lower.length > cuts.length) low = middle;
    else [cuts, high] = [lower, middle];
  }
  return cuts;
}

/** Choose cuts that cross the fewest wires, with columns up to this height unless a single rank is higher. */
function fill(ends: readonly number[], crossing: readonly number[], height: number): number[] {
  const cuts = [0];
  const last = ends.length - 1;
  let start = 0;
  while (ends[last] - ends[start] > height) {
    const full = Math.max(start + 1, countUpTo(ends, ends[start] + height) - 1);
    const early = Math.min(full, Math.max(start + 1, countBelow(ends, ends[start] + height * 0.8)));
    let cut = full;
    for (let at = full - 1; at >= early; at--) if (crossing[at] < crossing[cut]) cut = at;
    cuts.push(cut);
    start = cut;
  }
  if (start !== last) cuts.push(last);
  return cuts;
}

function highest(numbers: readonly number[]): number {
  return numbers.reduce((most, each) => Math.max(most, each), 0);
}

function runningSums(numbers: readonly number[]): number[] {
  let sum = 0;
  return numbers.map((each) => (sum += each));
}
