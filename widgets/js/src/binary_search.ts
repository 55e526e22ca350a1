/** Binary search. */

/**
 * Return the first of `count` places where `holds` is true, or `count` if there is none. `holds` must stay true from
 * there on.
 */
export function firstWhere(count: number, holds: (place: number) => boolean): number {
  let [low, high] = [0, count];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Return the number of sorted values that are less than `limit`. */
export function countBelow(sorted: ArrayLike<number>, limit: number): number {
  return firstWhere(sorted.length, (at) => sorted[at] >= limit);
}

/** Return the number of sorted values that are at most `limit`. */
export function countUpTo(sorted: ArrayLike<number>, limit: number): number {
  return firstWhere(sorted.length, (at) => sorted[at] > limit);
}

/** Return the index of the last sorted value that is at most `limit`; 0 if there is none. */
export function lastUpTo(sorted: ArrayLike<number>, limit: number): number {
  return Math.max(0, countUpTo(sorted, limit) - 1);
}
