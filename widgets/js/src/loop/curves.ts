/** Losses and learning rates over the steps: what there is to draw of them, whatever the width. */

import { NO_SCALAR, rowAt } from "./loop_data.ts";

/** What several rows of steps have in common, at the place of one pixel or some. */
export interface Bin {
  /** The middle of its steps. */
  step: number;
  low: number;
  high: number;
  middle: number;
  /** Whether a number of it is NaN or Inf. */
  bad: boolean;
}

/** The numbers of one optimizer between two steps, in so many bins at most. Where it had none there is no bin. */
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
    const step = (spans[2 * start] + spans[2 * end - 1]) / 2;
    found.push({ step, low: numbers[0], high: numbers.at(-1)!, middle: numbers[numbers.length >> 1], bad });
  }
  return found;
}

/** The median of each with the three before and behind it. */
export function running(values: readonly number[]): number[] {
  return values.map((_, at) => {
    const near = values.slice(Math.max(0, at - 3), at + 4).sort((one, other) => one - other);
    return near[near.length >> 1];
  });
}

/** From a number to its share of the height, 0 below and 1 above; and the numbers that stand at lines. */
export interface Scale {
  share: (value: number) => number;
  ticks: number[];
  log: boolean;
}

/** By powers of ten where all are positive and so far apart that a line would lie at the bottom. */
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
