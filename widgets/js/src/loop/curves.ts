/** Losses and learning rates over the steps, prepared for drawing at any width. */

import { NO_SCALAR, rowAt } from "./loop_data.ts";

/** Summary of the steps that share one pixel or a few. */
export interface Bin {
  /** Middle of its steps, and their number. */
  step: number;
  steps: number;
  low: number;
  high: number;
  middle: number;
  /** True if one of its values is NaN or Inf. */
  bad: boolean;
}

/** Return at most `most` bins of one optimizer's values between two steps. Steps without a value have no bin. */
export function bins(
  spans: readonly number[],
  values: Float32Array,
  optimizers: number,
  optimizer: number,
  [from, to]: readonly [number, number],
  most: number,
): Bin[] {
  const found: Bin[] = [];
  const rows = spans.length / 2;
  const first = Math.max(0, rowAt(spans, from));
  const last = Math.min(rows - 1, Math.max(first, rowAt(spans, to)));
  const size = Math.max(1, Math.ceil((last - first + 1) / Math.max(1, most)));
  for (let start = first - (first % size); start <= last; start += size) {
    const numbers: number[] = [];
    let bad = false;
    const end = Math.min(rows, start + size);
    for (let row = start; row < end; row++) {
      const value = values[row * optimizers + optimizer];
      if (value === NO_SCALAR || value === undefined) continue;
      if (Number.isFinite(value)) numbers.push(value);
      else bad = true;
    }
    if (!numbers.length && !bad) continue;
    numbers.sort((one, other) => one - other);
    const [begin, stop] = [spans[2 * start], spans[2 * end - 1]];
    found.push({ step: (begin + stop) / 2, steps: stop - begin + 1, low: numbers[0], high: numbers.at(-1)!, middle: numbers[numbers.length >> 1], bad });
  }
  return found;
}

/** Return the running median of each value with its three neighbours on both sides. */
export function running(values: readonly number[]): number[] {
  return values.map((_, at) => {
    const near = values.slice(Math.max(0, at - 3), at + 4).sort((one, other) => one - other);
    return near[near.length >> 1];
  });
}

/** A scale from values to shares of the height, 0 at the bottom and 1 at the top, and the values of its grid lines. */
export interface Scale {
  share: (value: number) => number;
  ticks: number[];
  log: boolean;
}

/**
 * Return a scale. It is logarithmic if all values are positive and span so much that small ones would lie on the bottom
 * line.
 */
export function scaleOf(low: number, high: number, wish: "log" | "linear"): Scale {
  if (wish === "log" && low > 0 && high > 2 * low) {
    const [bottom, top] = [Math.log10(low), Math.log10(high)];
    const ticks: number[] = [];
    for (let power = Math.floor(bottom); power <= top; power++) {
      for (const digit of [1, 3]) {
        const tick = Number(`${digit}e${power}`);
        if (tick >= low && tick <= high) ticks.push(tick);
      }
    }
    while (ticks.length > 4) ticks.splice(0, ticks.length, ...ticks.filter((_, at) => at % 2 === 0));
    return { share: (value) => (Math.log10(value) - bottom) / (top - bottom), ticks, log: true };
  }
  const room = high - low || Math.abs(high) || 1;
  const [bottom, top] = [high === low ? low - room / 2 : low, high === low ? high + room / 2 : high];
  return { share: (value) => (value - bottom) / (top - bottom), ticks: high === low ? [low] : [low, high], log: false };
}
