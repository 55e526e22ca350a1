/** The line pattern of each policy, the same in its tab and in the memory chart. */

const KNOWN: Record<string, readonly number[]> = { heap: [], bfs: [6, 3], dfs: [1.5, 2.5] };
const OTHERS: readonly (readonly number[])[] = [
  [9, 3, 2, 3],
  [12, 4],
  [9, 3, 2, 3, 2, 3],
  [4, 2],
  [14, 3, 4, 3],
];

/** By schedule the lengths of strokes and gaps in pixels; none for a solid line. */
export function dashes(policies: readonly string[]): (readonly number[])[] {
  let others = 0;
  return policies.map((policy) => KNOWN[policy] ?? OTHERS[others++ % OTHERS.length]);
}
