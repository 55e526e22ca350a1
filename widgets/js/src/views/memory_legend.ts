/** The legend of memory, which is its read-out, too: bytes by category at the cursor. */

import { el } from "../dom.ts";
import { type CurveLevels, CURVES } from "../model/curves.ts";
import { CATEGORIES } from "../model/document.ts";
import type { MemoryLevels } from "../model/memory.ts";
import { count, nth, size } from "../text.ts";

const LONGEST_REASON = 90;
/** More are set closer to each other. */
const MOST_ROWS = 6;

export interface Legend {
  readonly element: HTMLElement;
  /** Shows these categories, as short as there is room for. */
  build(categories: readonly number[], curves: readonly CurveLevels[], isShort: boolean): void;
  /** Shows the bytes of a place, at its highest level. */
  read(levels: MemoryLevels, place: number, isHovered: boolean): void;
}

interface Row {
  category: number;
  element: HTMLElement;
  bytes: HTMLElement;
}

export function makeLegend(): Legend {
  const element = el("div", { class: "lg" });
  const what = el("span");
  const sum = el("b");
  const total = el("div", { class: "tot" }, el("span"), what, sum);
  let rows: Row[] = [];
  let curveRows: { levels: CurveLevels; element: HTMLElement; bytes: HTMLElement }[] = [];
  let short = false;
  let built = "";
  return {
    element,
    build(categories, curves, isShort) {
      const wanted = JSON.stringify([categories, isShort]);
      if (wanted === built && curves.length === curveRows.length && curves.every((each, at) => each === curveRows[at].levels)) return;
      built = wanted;
      short = isShort;
      rows = categories.map((category) => rowOf(category, short));
      curveRows = curves.map((levels) => curveRow(levels, short));
      element.replaceChildren(...rows.map((row) => row.element), total, ...curveRows.map((row) => row.element));
      element.classList.toggle("tight", rows.length + curveRows.length > MOST_ROWS);
    },
    read(levels, place, isHovered) {
      for (const { category, element: row, bytes } of rows) {
        const amount = levels.categoryLevels[category][place];
        row.classList.toggle("zero", !amount);
        row.dataset.bytes = String(amount);
        bytes.textContent = amount ? size(amount) : "0";
      }
      what.textContent = whatIsRead(levels, place, isHovered, short);
      sum.textContent = size(levels.taskLevels[place]);
      total.dataset.bytes = String(levels.taskLevels[place]);
      for (const row of curveRows) {
        const amount = row.levels.taskLevels[place];
        row.bytes.textContent = size(amount);
        row.element.dataset.bytes = String(amount);
      }
    },
  };
}

/** A plan's curve: its line, and its level at the cursor. */
function curveRow(levels: CurveLevels, isShort: boolean): { levels: CurveLevels; element: HTMLElement; bytes: HTMLElement } {
  const { name } = levels.curve;
  const { title, short } = CURVES[name];
  const bytes = el("b");
  const sample = el("span", { class: `cv ${name}`, "aria-hidden": "true" });
  return { levels, bytes, element: el("div", { "data-curve": name }, sample, el("span", {}, isShort ? short : title), bytes) };
}

function rowOf(category: number, isShort: boolean): Row {
  const { key, title, short } = CATEGORIES[category];
  const bytes = el("b");
  const swatch = el("span", { class: "sw", style: `background: var(--${key})` });
  const element = el("div", { "data-category": key }, swatch, el("span", {}, isShort ? short : title), bytes);
  return { category, element, bytes };
}

function whatIsRead(levels: MemoryLevels, place: number, isHovered: boolean, isShort: boolean): string {
  if (place >= levels.places) return "at the end";
  if (isHovered) return `in the ${nth(place + 1)}`;
  return isShort ? "at most" : "this task, at most";
}

/** What the numbers rest on, and why they may be off. */
export function basisWords(levels: MemoryLevels, isPlanned = false): { said: string; reasons: string } {
  const { basis, estimates } = levels.memory;
  const reasons = estimates.map((reason) => `${reason[0].toUpperCase()}${reason.slice(1)}.`).join("\n");
  if (basis === "measured") return { said: "measured", reasons };
  if (isPlanned && basis === "calibrated") return { said: "predicted by the plan", reasons };
  // That a dry run does not see all that kernels take is said where no other reason says of which.
  const reason = estimates.find((each) => !each.startsWith("a dry run sees ")) ?? estimates.at(0);
  if (reason) return { said: `predicted, an estimate: ${shortened(reason)}`, reasons };
  if (basis === "dry run") return { said: "predicted", reasons };
  return { said: "predicted from a measured run", reasons };
}

/** The first words of a reason, without how many tasks it is of, and which. */
function shortened(reason: string): string {
  const [first] = reason.replace(/^not known from a dry run: /, "misses ").split(/;|: \d|, the first/);
  return first.length > LONGEST_REASON ? `${first.slice(0, LONGEST_REASON).replace(/\s+\S*$/, "")}…` : first;
}

/** The whole chart in one sentence, for those who don't see it. */
export function chartWords(levels: MemoryLevels, peak: string, curves: readonly CurveLevels[]): string {
  const others = curves.map(({ curve, peak: bytes }) => `; ${CURVES[curve.name].title} ${size(bytes)}`);
  return `memory by category over ${count(levels.places, "task")}: ${peak}${others.join("")}`;
}
