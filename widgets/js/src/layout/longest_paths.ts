/** Longest paths: the rank of each item, and the items on cycles. */

export interface Ranked {
  /** Length of the longest path from a source to each item. */
  ranks: Int32Array;
  /** Items that are neither on a cycle nor below one, sources first. */
  order: Int32Array;
}

/** Links as two columns: link i leads from item `sources[i]` to item `targets[i]`. */
export interface Links {
  sources: ArrayLike<number>;
  targets: ArrayLike<number>;
}

export function ranksOf(count: number, { sources, targets }: Links): Ranked {
  const starts = new Int32Array(count + 1);
  const missing = new Int32Array(count);
  for (let link = 0; link < sources.length; link++) {
    starts[sources[link] + 1]++;
    missing[targets[link]]++;
  }
  for (let item = 0; item < count; item++) starts[item + 1] += starts[item];
  const next = starts.slice(0, count);
  const successors = new Int32Array(sources.length);
  for (let link = 0; link < sources.length; link++) successors[next[sources[link]]++] = targets[link];

  const ranks = new Int32Array(count);
  const order = new Int32Array(count);
  let length = 0;
  for (let item = 0; item < count; item++) if (!missing[item]) order[length++] = item;
  for (let place = 0; place < length; place++) {
    const item = order[place];
    for (let at = starts[item]; at < starts[item + 1]; at++) {
      const successor = successors[at];
      if (ranks[successor] <= ranks[item]) ranks[successor] = ranks[item] + 1;
      if (!--missing[successor]) order[length++] = successor;
    }
  }
  return { ranks, order: order.subarray(0, length) };
}

/** Move each item without incoming links to the rank just above its first target. Modifies `ranks`. */
export function lowerSources(ranks: Int32Array, { sources, targets }: Links): void {
  const lowest = new Int32Array(ranks.length).fill(-1);
  const entered = new Uint8Array(ranks.length);
  for (let link = 0; link < sources.length; link++) {
    const source = sources[link];
    const rank = ranks[targets[link]];
    if (lowest[source] < 0 || rank < lowest[source]) lowest[source] = rank;
    entered[targets[link]] = 1;
  }
  for (let item = 0; item < ranks.length; item++)
    if (!entered[item] && lowest[item] > 0) ranks[item] = lowest[item] - 1;
}
