/** Bars of a gradient's histogram. The bins are EDGES in engine/recording/statistics.py; zeros are in no bin. */

import type { Gradient } from "./document.ts";
import { grouped } from "../format.ts";

/** Number of bins: two per power of ten from 1e-12 to 1e3 on both sides of zero, and the outer ones. */
const BINS = 64;
const PER_SIDE = BINS / 2;
const PER_DECADE = 2;
const LEAST_EXPONENT = -12;
const MOST_EXPONENT = 3;
/** Minimum decades of an axis: with fewer, every histogram would have only two bars. */
const LEAST_DECADES = 2;

/** Powers of ten on an axis that is symmetric about zero. */
export interface Decades {
  least: number;
  most: number;
  /** True if some values exceed `most`, which is then the last edge. */
  isBeyond: boolean;
}

export interface Bar {
  /**
   * Bar number from zero outwards, starting at `Decades.least`: 0 is the first bar; -1 collects values closer to zero
   * than any bin.
   */
  step: number;
  isNegative: boolean;
  /** Height from 0 to 1: the square root of the count relative to the largest, so that rare values remain visible. */
  height: number;
}

/** Return the decades that these gradients need; null if none of them has a histogram. */
export function decadesOf(gradients: Iterable<Gradient | null | undefined>): Decades | null {
  let [least, most] = [PER_SIDE, -1];
  for (const gradient of gradients) {
    gradient?.bins?.forEach((amount, index) => {
      if (!amount || (gradient.first_bin ?? 0) + index >= BINS) return;
      const { out } = sideOf((gradient.first_bin ?? 0) + index);
      least = Math.min(least, out);
      most = Math.max(most, out);
    });
  }
  if (most < 0) return null;
  const isBeyond = most === PER_SIDE - 1;
  const lowest = LEAST_EXPONENT + Math.floor(Math.max(least - 1, 0) / PER_DECADE);
  const from = Math.min(lowest, MOST_EXPONENT - 1);
  const to = Math.min(MOST_EXPONENT, LEAST_EXPONENT + Math.ceil(most / PER_DECADE));
  const end = Math.max(to, from + 1, LEAST_EXPONENT + LEAST_DECADES);
  return { least: Math.min(from, end - LEAST_DECADES), most: end, isBeyond };
}

/** Return the decades that cover both; null if both are null. */
export function joined(one: Decades | null, other: Decades | null): Decades | null {
  if (!one || !other) return one ?? other;
  const [least, most] = [Math.min(one.least, other.least), Math.max(one.most, other.most)];
  return { least, most, isBeyond: one.isBeyond || other.isBeyond };
}

/** Return the number of bars on each side of zero. */
export function barsPerSide({ least, most, isBeyond }: Decades): number {
  return (most - least) * PER_DECADE + (isBeyond ? 1 : 0);
}

/** Return a gradient's bars, and the height of the bar of exact zeros. */
export function barsOf(gradient: Gradient, { least }: Decades): { bars: Bar[]; zero: number } {
  const { bins = [], first_bin: first = 0, zero = 0 } = gradient;
  const most = Math.max(...bins, zero, 1);
  const nearest = (least - LEAST_EXPONENT) * PER_DECADE + 1;
  const bars = bins.flatMap((amount, index) => {
    if (!amount || first + index >= BINS) return [];
    const { out, isNegative } = sideOf(first + index);
    return [{ step: Math.max(out - nearest, -1), isNegative, height: Math.sqrt(amount / most) }];
  });
  return { bars, zero: Math.sqrt(zero / most) };
}

/** Return the side of a bin and its distance from zero, where 0 is the closest. */
function sideOf(bin: number): { out: number; isNegative: boolean } {
  const isNegative = bin < PER_SIDE;
  return { out: isNegative ? PER_SIDE - 1 - bin : bin - PER_SIDE, isNegative };
}

/** Return a short axis label for a power of ten: `0.01`, `1`, `100`, `1e−6`. */
export function power(exponent: number): string {
  if (exponent < -2 || exponent > 2) return `1e${exponent}`.replace("-", "−");
  return String(+(10 ** exponent).toPrecision(1));
}

/** Return the range of a bin: `0.01 to 0.0316`, `below −1000`, `0 to 1e−12`. */
export function binRange(bin: number): string {
  const { out, isNegative } = sideOf(bin);
  const sign = isNegative ? "−" : "";
  if (out === PER_SIDE - 1) return isNegative ? "below −1000" : "above 1000";
  const near = out ? sign + edge(out - 1) : "0";
  const far = sign + edge(out);
  return isNegative ? `${far} to ${near}` : `${near} to ${far}`;
}

function edge(step: number): string {
  const value = 10 ** (LEAST_EXPONENT + step / PER_DECADE);
  const text = value < 1e-3 ? value.toExponential(step % PER_DECADE ? 1 : 0) : String(+value.toPrecision(3));
  return text.replace("-", "−");
}

/** Return a description of the histogram: the axis, the number of values, and where most of them are. */
export function summary({ bins = [], first_bin: first = 0, zero = 0 }: Gradient, decades: Decades): string {
  const total = bins.reduce((sum, amount) => sum + amount, 0);
  const most = bins.indexOf(Math.max(...bins));
  const share = Math.round((100 * bins[most]) / total);
  const all =
    bins.length === 1
      ? `all ${binRange(first)}`
      : `${share} % are ${binRange(first + most)}; the outermost ${binRange(first)} and ` +
        binRange(first + bins.length - 1);
  const zeros = zero ? `; ${grouped(zero)} exact zeros, the bar in the middle` : "";
  return (
    `${grouped(total)} values. The axis is logarithmic on both sides of zero, from ±${power(decades.least)} to ` +
    `±${power(decades.most)}, with two bars per power of ten: ${all}${zeros}`
  );
}
