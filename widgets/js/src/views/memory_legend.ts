/** The legend of the memory chart, which also shows the bytes by category at the cursor. */

import { el } from "../dom.ts";
import { type CurveLevels, CURVES } from "../model/recompute_curves.ts";
import { CATEGORIES } from "../model/document.ts";
import type { MemoryLevels } from "../model/memory.ts";
import { count, nth, size } from "../format.ts";

const LONGEST_REASON = 90;
/** Maximum number of categories named for a step's peak. */
const MOST_SHARES = 4;
/** Height of a row, and of a row if space is short. */
const ROW = 14;
export const TIGHT_ROW = 12;

export interface Legend {
  /** Total level; the rows below add up to it. */
  readonly total: HTMLElement;
  readonly element: HTMLElement;
  /** Build rows for these categories within this many pixels. */
  build(categories: readonly number[], curves: readonly CurveLevels[], height: number): void;
  /** Show the bytes at a time; for a task, at its peak. */
  read(levels: MemoryLevels, forward: MemoryLevels | null, time: number): void;
}

interface Row {
  category: number;
  element: HTMLElement;
  bytes: HTMLElement;
}

export function makeLegend(): Legend {
  const element = el("div", { class: "lg" });
  const total = el("b", { class: "tot" });
  let rows: Row[] = [];
  let curveRows: { levels: CurveLevels; element: HTMLElement; bytes: HTMLElement }[] = [];
  let built = "";
  return {
    total,
    element,
    build(categories, curves, height) {
      const all = categories.length + curves.length;
      element.style.height = `${Math.max(0, height)}px`;
      element.classList.toggle("tight", all * ROW > height);
      element.classList.toggle("full", all * TIGHT_ROW > height);
      const wanted = categories.join();
      if (wanted === built && curves.length === curveRows.length && curves.every((each, at) => each === curveRows[at].levels)) return;
      built = wanted;
      rows = categories.map(rowOf);
      curveRows = curves.map(curveRow);
      element.replaceChildren(...rows.map((row) => row.element), ...curveRows.map((row) => row.element));
    },
    read(levels, forward, time) {
      const at = momentOf(levels, forward, time);
      for (const { category, element: row, bytes } of rows) {
        const amount = at.bytes[category];
        row.classList.toggle("zero", !amount);
        row.dataset.bytes = String(amount);
        bytes.textContent = amount ? size(amount) : "0";
      }
      total.textContent = size(at.level);
      total.title = at.words;
      total.dataset.bytes = String(at.level);
      for (const row of curveRows) {
        const amount = row.levels.taskLevels[Math.max(0, Math.floor(time))];
        row.bytes.textContent = size(amount);
        row.element.dataset.bytes = String(amount);
      }
    },
  };
}

interface Moment {
  bytes: ArrayLike<number>;
  level: number;
  words: string;
}

/** Return the bytes alive at a time. */
export function momentOf(levels: MemoryLevels, forward: MemoryLevels | null, time: number): Moment {
  if (time < 0 && forward) {
    const event = forward.forwardEvent(time);
    return { bytes: forward.forwardLevels[event], level: forward.levels[event], words: "in the forward" };
  }
  if (levels.isStep && time > levels.places) {
    const bytes = levels.afterSteps(Number, time).levels.map((column) => column[column.length - 1]);
    return { bytes, level: bytes.reduce((sum, each) => sum + each), words: "after the backward" };
  }
  const place = Math.max(0, Math.min(levels.places, Math.floor(time)));
  const bytes = levels.categoryLevels.map((column) => column[place]);
  const words = place >= levels.places ? "at the end" : `while the ${nth(place + 1)} task runs, at most`;
  return { bytes, level: levels.taskLevels[place], words };
}

/** Create the row of a plan's curve: its line, and its level at the cursor. */
function curveRow(levels: CurveLevels): { levels: CurveLevels; element: HTMLElement; bytes: HTMLElement } {
  const { name } = levels.curve;
  const { title, name: said } = CURVES[name];
  const bytes = el("b");
  const sample = el("span", { class: `cv ${name}`, "aria-hidden": "true" });
  return { levels, bytes, element: el("div", { "data-curve": name, title }, sample, el("span", {}, said), bytes) };
}

function rowOf(category: number): Row {
  const { key, title, name } = CATEGORIES[category];
  const bytes = el("b");
  const swatch = el("span", { class: "sw", style: `background: var(--${key})` });
  const element = el("div", { "data-category": key, title }, swatch, el("span", {}, name), bytes);
  return { category, element, bytes };
}

/** Return the basis of the numbers, and the reasons why they may be inaccurate. */
export function basisWords(levels: MemoryLevels, isPlanned = false): { said: string; reasons: string } {
  const { basis, estimates, main_reason: reason } = levels.memory;
  const reasons = estimates.map((reason) => `${reason[0].toUpperCase()}${reason.slice(1)}.`).join("\n");
  if (basis === "measured") return { said: "measured", reasons };
  if (isPlanned && basis === "calibrated") return { said: "predicted by the plan", reasons };
  if (reason) return { said: `predicted, an estimate: ${shortened(reason)}`, reasons };
  if (basis === "dry run") return { said: "predicted", reasons };
  return { said: "predicted from a measured run", reasons };
}

/** Return the start of a reason, without the number and names of the tasks. */
function shortened(reason: string): string {
  const [first] = reason.split(/;|: \d|, the first/);
  return first.length > LONGEST_REASON ? `${first.slice(0, LONGEST_REASON).replace(/\s+\S*$/, "")}…` : first;
}

/** Return the peak as a heading and a sentence. */
export function peakWords(
  levels: MemoryLevels,
  forward: MemoryLevels | null,
  titleOf: (place: number) => string,
): [string, string] {
  const { peak, places, memory, isStep } = levels;
  const { place, bytes } = peak;
  const after = isStep ? "after the backward" : "after the last task";
  const during = place >= places ? after : `the ${nth(place + 1)} task, ${titleOf(place)}`;
  const when = place >= 0 ? during : isStep ? "in the forward" : "before the first task";
  const made = isStep ? sharesOf(levels, forward) : memory.peak;
  return [`peak ${size(bytes)}`, `: ${when}${made ? `; ${made}` : ""}`];
}

/** Return the composition of a step's peak in the legend's terms: `44 % optimizer state, 30 % activations`. */
function sharesOf(levels: MemoryLevels, forward: MemoryLevels | null): string {
  const { bytes } = momentOf(levels, forward, levels.peak.time);
  const parts = CATEGORIES.map(({ name }, category) => ({ name, percent: Math.round((100 * bytes[category]) / levels.peak.bytes) }));
  const shown = parts.filter(({ percent }) => percent).sort((one, other) => other.percent - one.percent).slice(0, MOST_SHARES);
  return shown.map(({ name, percent }) => `${percent} % ${name}`).join(", ");
}

/** Return one sentence about the whole chart, for screen readers. */
export function chartWords(levels: MemoryLevels, peak: string, curves: readonly CurveLevels[]): string {
  const others = curves.map(({ curve, peak: bytes }) => `; ${CURVES[curve.name].title} ${size(bytes)}`);
  return `memory by category over ${count(levels.places, "task")}: ${peak}${others.join("")}`;
}
