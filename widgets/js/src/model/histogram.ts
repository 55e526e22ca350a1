/** A gradient's histogram as bars. The bins are those of engine/statistics.py: see EDGES there. */

import { grouped } from "../text.ts";

/** Two per power of ten from 1e-12 to 1e3 on both sides of zero, and what lies beyond. */
export const BINS = 64;
const PER_SIDE = BINS / 2;
const PER_DECADE = 2;
const LEAST_EXPONENT = -12;

/** By bin its height, 0 to 1: the square root of its share, so that rare values are seen beside common ones. */
export function heights(first: number, counts: readonly number[]): Float64Array {
  const found = new Float64Array(BINS);
  const most = Math.max(...counts, 1);
  counts.forEach((count, index) => {
    if (first + index < BINS) found[first + index] = Math.sqrt(count / most);
  });
  return found;
}

/** What a bin holds: `0.01 to 0.0316`, `below −1000`, `0 to 1e−12`. */
export function binRange(bin: number): string {
  const negative = bin < PER_SIDE;
  const out = negative ? PER_SIDE - 1 - bin : bin - PER_SIDE; // 0: next to zero
  const sign = negative ? "−" : "";
  if (out === PER_SIDE - 1) return negative ? "below −1000" : "above 1000";
  const near = out ? sign + edge(out - 1) : "0";
  const far = sign + edge(out);
  return negative ? `${far} to ${near}` : `${near} to ${far}`;
}

function edge(step: number): string {
  const value = 10 ** (LEAST_EXPONENT + step / PER_DECADE);
  const text = value < 1e-3 ? value.toExponential(step % PER_DECADE ? 1 : 0) : String(+value.toPrecision(3));
  return text.replace("-", "−");
}

/** In words: how many values there are and where most of them lie. */
export function summary(first: number, counts: readonly number[]): string {
  const total = counts.reduce((sum, count) => sum + count, 0);
  const most = counts.indexOf(Math.max(...counts));
  const share = Math.round((100 * counts[most]) / total);
  const low = binRange(first);
  const high = binRange(first + counts.length - 1);
  const all =
    counts.length === 1 ? `all ${low}` : `${share} % are ${binRange(first + most)}; the outermost ${low} and ${high}`;
  return `${grouped(total)} values by size on both sides of zero, two bars a power of ten: ${all}`;
}
