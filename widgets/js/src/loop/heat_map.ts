/** Data of the heat map: modules folded into lines, steps pooled into columns. */

import { ABSENT, isBad, rowAt, type Loop } from "./loop_data.ts";

/** Quantity shown in the cells. */
export type Measure = "gradient norm" | "update ratio";

/** A line of the heat map: a module, or several modules with the same start of their paths. */
export interface Line {
  name: string;
  modules: number[];
}

/** Values by row of steps and module. */
export interface Numbers {
  spans: readonly number[];
  values: Float32Array;
  width: number;
}

export function numbersOf(loop: Loop, measure: Measure): Numbers {
  const width = loop.modules.length;
  if (measure === "gradient norm") return { spans: loop.rows, values: loop.gradients, width };
  const ratios = new Float32Array(loop.weights.length).fill(ABSENT);
  for (let at = 0; at < ratios.length; at++) {
    const [weight, update] = [loop.weights[at], loop.updates[at]];
    if (weight !== ABSENT && weight !== 0 && update !== ABSENT) ratios[at] = update / weight;
  }
  const { samples } = loop; // a sample holds until the next one
  const ends = (at: number) => (at + 2 < samples.length ? samples[at + 2] : Math.max(samples[at + 1] + 1, loop.steps)) - 1;
  return { spans: samples.map((step, at) => (at % 2 ? ends(at - 1) : step)), values: ratios, width };
}

/** Return whether the measure was taken in one of these steps. Gradient norms are taken in all, update ratios in some. */
export function isMeasured(loop: Loop, measure: Measure, first: number, last: number): boolean {
  if (measure === "gradient norm") return true;
  const row = rowAt(loop.samples, last);
  return row >= 0 && loop.samples[2 * row + 1] >= first;
}

/** Fold modules with the same first `depth` parts of their paths into one line, at the position of the first. */
export function folded(modules: readonly string[], depth: number): Line[] {
  const lines = new Map<string, Line>();
  modules.forEach((name, module) => {
    const short = name.split(".").slice(0, depth).join(".");
    const line = lines.get(short);
    if (line) line.modules.push(module);
    else lines.set(short, { name: short, modules: [module] });
  });
  return [...lines.values()];
}

/** Return the number of parts of the longest path. */
export function deepest(modules: readonly string[]): number {
  return Math.max(1, ...modules.map((name) => name.split(".").length));
}

/** Return the largest depth with at most `most` lines, at least 1. */
export function fittingDepth(modules: readonly string[], most: number): number {
  let depth = deepest(modules);
  while (depth > 1 && folded(modules, depth).length > most) depth--;
  return depth;
}

/** Return the larger of two numbers; NaN and Inf rank above all others. */
const worse = (one: number, other: number): number =>
  Number.isNaN(one) || Number.isNaN(other) ? NaN : one > other ? one : other;

/** Return the value that a line shows in a row of steps. */
export function worst({ values, width }: Numbers, row: number, modules: readonly number[]): number {
  let found = ABSENT;
  for (const module of modules) found = worse(found, values[row * width + module]);
  return found;
}

export interface Columns {
  /** First step of the first column. */
  first: number;
  /** Number of steps per column. */
  size: number;
  count: number;
}

/**
 * Divide the steps from `first` to before `end` into at most `most` columns. The columns do not move when the range
 * does.
 */
export function columnsOf(first: number, end: number, most: number): Columns {
  const size = Math.max(1, Math.ceil((end - first) / Math.max(1, most)));
  const from = Math.floor(first / size) * size;
  return { first: from, size, count: Math.max(1, Math.ceil((end - from) / size)) };
}

/** Return the largest value for each line and column; NaN ranks highest. */
export function pooled(numbers: Numbers, lines: readonly Line[], columns: Columns): Float32Array {
  const { spans, values, width } = numbers;
  const { first, size, count } = columns;
  const found = new Float32Array(lines.length * count).fill(ABSENT);
  const lineOf = new Int32Array(width).fill(-1);
  lines.forEach((line, number) => line.modules.forEach((module) => (lineOf[module] = number)));
  const end = first + size * count;
  for (let row = Math.max(0, rowAt(spans, first)); 2 * row < spans.length && spans[2 * row] < end; row++) {
    const from = Math.max(0, Math.floor((spans[2 * row] - first) / size));
    const to = Math.min(count - 1, Math.floor((spans[2 * row + 1] - first) / size));
    for (let module = 0; module < width; module++) {
      const value = values[row * width + module];
      const line = lineOf[module];
      if (value === ABSENT || line < 0) continue;
      const base = line * count;
      for (let at = base + from; at <= base + to; at++) {
        // every comparison with NaN is false, so the last test catches it
        if (value > found[at] || value !== value) found[at] = value;
      }
    }
  }
  return found;
}

/** Return the row of a column whose value the line's cell shows; -1 if there is none. */
export function shownRow(numbers: Numbers, line: Line, columns: Columns, column: number): number {
  const start = columns.first + column * columns.size;
  let [best, found] = [ABSENT, -1];
  for (let row = Math.max(0, rowAt(numbers.spans, start)); 2 * row < numbers.spans.length; row++) {
    if (numbers.spans[2 * row] >= start + columns.size) break;
    if (numbers.spans[2 * row + 1] < start) continue;
    const value = worst(numbers, row, line.modules);
    if (found < 0 || value > best || (isBad(value) && !isBad(best))) [best, found] = [value, row];
    if (isBad(best)) break;
  }
  return found;
}

/** Return the lowest and highest power of ten of the colour scale: at most five decades below the largest value. */
export function decades(cells: Float32Array): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of cells) {
    if (!(value > 0) || !Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (high < 0) return [-3, 1];
  const top = Math.log10(high);
  return [Math.max(Math.log10(low), top - 5), Math.max(top, Math.log10(low) + 1e-6)];
}

const AROUND = 6;

/** Mark the cells that are more than ten times the median of the 13 around them. */
export function outliers(cells: Float32Array, count: number): Uint8Array {
  const found = new Uint8Array(cells.length);
  for (let start = 0; start < cells.length; start += count) {
    for (let at = 0; at < count; at++) {
      const value = cells[start + at];
      if (!(value > 0) || !Number.isFinite(value)) continue;
      const near: number[] = [];
      for (let other = Math.max(0, at - AROUND); other <= Math.min(count - 1, at + AROUND); other++) {
        const beside = cells[start + other];
        if (beside > 0 && Number.isFinite(beside)) near.push(beside);
      }
      if (near.length < 4) continue;
      near.sort((one, other) => one - other);
      if (value >= 10 * near[near.length >> 1]) found[start + at] = 1;
    }
  }
  return found;
}
