/** A training loop as its page is given it: engine/training/training_file.py writes it. */

import { firstWhere } from "../binary_search.ts";
import { number } from "../format.ts";

/** Where a norm is not there. */
export const ABSENT = -1;
/** Where a loss or a learning rate is not there: float32's least number. */
export const NO_SCALAR = -3.4028234663852886e38;

/** What memory is held for, from below: the colour of each, and what it is called. */
export const HELD = [
  ["other", "parameters"],
  ["held", "optimizer"],
  ["pgrad", "gradients"],
  ["work", "batch"],
  ["saved", "activations"],
  ["bad", "earlier steps"],
] as const;

export interface Finding {
  kind: string;
  step: number;
  last_step: number | null;
  sentence: string;
  module: string | null;
  /** Of a leak: who holds it, its bytes, and of how many holders alike this is the first. */
  tensor: string | null;
  size: number | null;
  alike?: number | null;
  certain: boolean;
}

export interface Loop {
  title: string;
  steps: number;
  every: number;
  sentences: string[];
  findings: Finding[];
  modules: string[];
  /** By path the class of a module whose name is a number. Older pages have none. */
  classes?: Record<string, string>;
  optimizers: string[];
  /** The first and the last step of each row, in turn. */
  rows: number[];
  samples: number[];
  looks: number[];
  /** Bytes, `HELD.length` numbers a row. */
  memory: Float32Array;
  gradients: Float32Array;
  weights: Float32Array;
  updates: Float32Array;
  losses: Float32Array;
  learning_rates: Float32Array;
  /** Rows in which a gradient scaler left a step out. */
  skipped: Set<number>;
  kept: Map<number, string>;
  black_box: boolean;
}

/** float32 numbers, little-endian, out of base64. */
export function floats(text: string): Float32Array {
  const bytes = atob(text);
  const found = new Uint8Array(bytes.length);
  for (let at = 0; at < bytes.length; at++) found[at] = bytes.charCodeAt(at);
  return new Float32Array(found.buffer);
}

/** What stands as JSON in a page. */
export function readLoop(text: string, title: string): Loop {
  const found = JSON.parse(text);
  if (found.version !== 2) throw new Error(`this page shows version 2 of a training, not ${found.version}`);
  return {
    ...found,
    title,
    gradients: floats(found.gradients),
    weights: floats(found.weights),
    updates: floats(found.updates),
    losses: floats(found.losses),
    learning_rates: floats(found.learning_rates),
    memory: floats(found.memory),
    skipped: new Set(found.skipped),
    kept: new Map(found.kept),
  };
}

/** The row in which a step is, or the last one before it; -1 before the first. `spans`: firsts and lasts in turn. */
export function rowAt(spans: readonly number[], step: number): number {
  return firstWhere(spans.length / 2, (row) => spans[2 * row] > step) - 1;
}

/** Whether a norm is NaN or Inf. */
export const isBad = (value: number): boolean => !Number.isFinite(value);

/** The middle one of finite numbers that are there, NaN of none. */
export function median(values: Iterable<number>): number {
  const there = [...values].filter((value) => value >= 0 && Number.isFinite(value)).sort((one, other) => one - other);
  return there.length ? there[there.length >> 1] : NaN;
}

/** What a module is called: `fc`, `blocks.3 Block`, where a number alone would say little. */
export function titleOf({ classes }: Pick<Loop, "classes">, path: string): string {
  const name = classes?.[path];
  return name ? `${path} ${name}` : path || "the model itself";
}

/** As many digits as one reads: `NaN`, `Inf`, `none`, `3.2e−5`, `0.0512`. */
export function said(value: number | undefined): string {
  if (value === undefined || value === ABSENT || value === NO_SCALAR) return "none";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "Inf" : "−Inf";
  return number(value);
}
