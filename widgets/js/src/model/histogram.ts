/** A gradient's histogram as bars. The bins are those of engine/recording/statistics.py: see EDGES there. Zeros are in none. */

import type { Gradient } from "./document.ts";
import { grouped } from "../format.ts";

/** Two per power of ten from 1e-12 to 1e3 on both sides of zero, and what lies beyond. */
const BINS = 64;
const PER_SIDE = BINS / 2;
const PER_DECADE = 2;
const LEAST_EXPONENT = -12;
const MOST_EXPONENT = 3;
/** An axis of fewer decades would make two bars of everything. */
const LEAST_DECADES = 2;

/** The powers of ten that an axis shows, the same to both sides of zero. */
export interface Decades {
  least: number;
  most: number;
  /** Whether there is something beyond `most`, which is the last edge then. */
  isBeyond: boolean;
}

export interface Bar {
  /** Counts from zero outwards, from `Decades.least` on: 0 is the first bar; -1: nearer to zero than any bin. */
  step: number;
  isNegative: boolean;
  /** 0 to 1: the square root of its share of the most, so that rare values are seen beside common ones. */
  height: number;
}

/** What all of these gradients use of the axis; null where none has a histogram. */
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

/** What both use; null where neither uses any. */
export function joined(one: Decades | null, other: Decades | null): Decades | null {
  if (!one || !other) return one ?? other;
  const [least, most] = [Math.min(one.least, other.least), Math.max(one.most, other.most)];
  return { least, most, isBeyond: one.isBeyond || other.isBeyond };
}

/** So many bars lie on each side of zero. */
export function barsPerSide({ least, most, isBeyond }: Decades): number {
  return (most - least) * PER_DECADE + (isBeyond ? 1 : 0);
}

/** Its bars, and the height of the one of exact zeros. */
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

/** The side of a bin, and how far out it is: 0 is next to zero. */
function sideOf(bin: number): { out: number; isNegative: boolean } {
  const isNegative = bin < PER_SIDE;
  return { out: isNegative ? PER_SIDE - 1 - bin : bin - PER_SIDE, isNegative };
}

/** `0.01`, `1`, `100`, `1e−6`: short, for a label of the axis. */
export function power(exponent: number): string {
  if (exponent < -2 || exponent > 2) return `1e${exponent}`.replace("-", "−");
  return String(+(10 ** exponent).toPrecision(1));
}

/** What a bin holds: `0.01 to 0.0316`, `below −1000`, `0 to 1e−12`. */
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

/** In words: the axis, how many values there are and where most of them lie. */
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
    `±${power(decades.most)}, with two bars a power of ten: ${all}${zeros}`
  );
}
