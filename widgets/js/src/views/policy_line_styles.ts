/** Line pattern of each policy, used in its tab and in the memory chart. */

const KNOWN: Record<string, readonly number[]> = { heap: [], bfs: [6, 3], dfs: [1.5, 2.5] };
const OTHERS: readonly (readonly number[])[] = [
  [9, 3, 2, 3],
  [12, 4],
  [9, 3, 2, 3, 2, 3],
  [4, 2],
  [14, 3, 4, 3],
];

/** Return the lengths of strokes and gaps of each schedule's line, pixels; empty for a solid line. */
export function dashes(policies: readonly string[]): (readonly number[])[] {
  let others = 0;
  return policies.map((policy) => KNOWN[policy] ?? OTHERS[others++ % OTHERS.length]);
}
