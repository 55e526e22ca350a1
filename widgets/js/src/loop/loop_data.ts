/** Data of a training page, written by engine/training/training_file.py. */

import { firstWhere } from "../binary_search.ts";
import { number } from "../format.ts";

/** Placeholder for a missing norm. */
export const ABSENT = -1;
/** Placeholder for a missing loss or learning rate: the lowest float32. */
export const NO_SCALAR = -3.4028234663852886e38;

/** Categories of memory in stacking order, with their colours and names. */
export const HELD = [
  ["param", "parameters"],
  ["state", "optimizer state"],
  ["pgrad", "gradients"],
  ["other", "batch"],
  ["saved", "activations"],
  ["bad", "earlier steps"],
] as const;

/** Categories of the memory that existed before a step. */
export const BASELINE = ["parameters", "buffers", "optimizer state", "gradients", "batch"] as const;

export interface Finding {
  kind: string;
  step: number;
  last_step: number | null;
  sentence: string;
  module: string | null;
  /** Facts about a leak: the object that holds it, its bytes, and the number of similar holders. */
  tensor: string | null;
  size: number | null;
  alike?: number | null;
  certain: boolean;
}

/** Mean time of a step, measured by the clock of `device`. `seconds` is by phase. */
export interface StepTime {
  seconds: Record<string, number>;
  steps: number;
  samples_per_second: number | null;
  device: string;
}

export interface Loop {
  title: string;
  /** Missing in older pages, and in loops of one step. */
  step_time?: StepTime | null;
  steps: number;
  every: number;
  sentences: string[];
  findings: Finding[];
  modules: string[];
  /** Class of a module whose name is a number, by path. Older pages have none. */
  classes?: Record<string, string>;
  optimizers: string[];
  /** First and last step of each row, alternating. */
  rows: number[];
  samples: number[];
  looks: number[];
  /** Bytes, `HELD.length` numbers per row. */
  memory: Float32Array;
  /** First and last step of each row of `baselines`, alternating. */
  baseline_steps: number[];
  /** Bytes that existed before the step, `BASELINE.length` numbers per row. */
  baselines: number[];
  gradients: Float32Array;
  weights: Float32Array;
  updates: Float32Array;
  losses: Float32Array;
  learning_rates: Float32Array;
  /** Rows in which the gradient scaler skipped a step. */
  skipped: Set<number>;
  kept: Map<number, string>;
  black_box: boolean;
}

/** Decode little-endian float32 numbers from base64. */
export function floats(text: string): Float32Array {
  const bytes = atob(text);
  const found = new Uint8Array(bytes.length);
  for (let at = 0; at < bytes.length; at++) found[at] = bytes.charCodeAt(at);
  return new Float32Array(found.buffer);
}

/** Parse the JSON embedded in a page. */
export function readLoop(text: string, title: string): Loop {
  const found = JSON.parse(text);
  if (found.version !== 2) throw new Error(`this page shows version 2 of a training, not ${found.version}`);
  return {
    baseline_steps: [], // older pages have none
    baselines: [],
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

/**
 * Return the row that contains a step, or the last one before it; -1 before the first. `spans`: first and last steps,
 * alternating.
 */
export function rowAt(spans: readonly number[], step: number): number {
  return firstWhere(spans.length / 2, (row) => spans[2 * row] > step) - 1;
}

/** Return whether a norm is NaN or Inf. */
export const isBad = (value: number): boolean => !Number.isFinite(value);

/** Return the median of the finite values that are present; NaN if there are none. */
export function median(values: Iterable<number>): number {
  const there = [...values].filter((value) => value >= 0 && Number.isFinite(value)).sort((one, other) => one - other);
  return there.length ? there[there.length >> 1] : NaN;
}

/** Return a module's title: `fc`; `blocks.3 Block` if the name is only a number. */
export function titleOf({ classes }: Pick<Loop, "classes">, path: string): string {
  const name = classes?.[path];
  return name ? `${path} ${name}` : path || "the model itself";
}

/** Format a value: `NaN`, `Inf`, `none`, `3.2e−5`, `0.0512`. */
export function said(value: number | undefined): string {
  if (value === undefined || value === ABSENT || value === NO_SCALAR) return "none";
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "Inf" : "−Inf";
  return number(value);
}
