/** Binary searches. */

/** The first of `count` places where `holds` is true, and then stays true; `count` if it never is. */
export function firstWhere(count: number, holds: (place: number) => boolean): number {
  let [low, high] = [0, count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** How many of the sorted values are less than `limit`. */
export function countBelow(sorted: ArrayLike<number>, limit: number): number {
  return firstWhere(sorted.length, (at) => sorted[at] >= limit);
}

/** How many of the sorted values are at most `limit`. */
export function countUpTo(sorted: ArrayLike<number>, limit: number): number {
  return firstWhere(sorted.length, (at) => sorted[at] > limit);
}

/** The index of the last of the sorted values that is at most `limit`; 0 if none is. */
export function lastUpTo(sorted: ArrayLike<number>, limit: number): number {
  return Math.max(0, countUpTo(sorted, limit) - 1);
}
