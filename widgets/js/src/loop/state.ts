/** State of the training page. */

import { isBad, median, rowAt, type Finding, type Loop } from "./loop_data.ts";
import {
  columnsOf,
  deepest,
  fittingDepth,
  folded,
  isMeasured,
  numbersOf,
  shownRow,
  worst,
  type Columns,
  type Line,
  type Measure,
  type Numbers,
} from "./heat_map.ts";

const FEWEST_STEPS = 8; // minimum number of steps in view
export const COLUMN = 4; // minimum width of a column, pixels
export const LEAST_ROW = 9;
/** The first view is unfolded further as long as it fills less than this share of the lines that fit. */
const SPARSE = 0.25;
export const MOST_ROW = 44;

export class State {
  measure: Measure = "gradient norm";
  numbers: Numbers;
  depth: number;
  lines: Line[] = [];
  /** Selected step; `line` is the selected line. */
  step = 0;
  line = 0;
  finding = -1;
  /** First step in view, and the step after the last. */
  from = 0;
  to: number;
  /** Number of lines above the first one in view. */
  offset = 0;
  /** Size of the heat map, pixels. */
  width = 600;
  height = 400;
  /** The step after the last one. */
  readonly end: number;
  private readonly known = new Map<Measure, Numbers>();

  constructor(readonly loop: Loop) {
    this.numbers = this.numbersBy(this.measure);
    this.end = Math.max(1, (loop.rows.at(-1) ?? 0) + 1, loop.steps);
    this.to = this.end;
    this.depth = deepest(loop.modules);
  }

  private numbersBy(measure: Measure): Numbers {
    let found = this.known.get(measure);
    if (!found) this.known.set(measure, (found = numbersOf(this.loop, measure)));
    return found;
  }

  /**
   * Set the initial view: all steps, folded so that each line is readable, at the first finding if there is one. Where
   * that would leave most of the height empty, the next depth is shown, and scrolls.
   */
  begin(): void {
    const room = Math.floor(this.height / LEAST_ROW);
    this.fold(fittingDepth(this.loop.modules, room));
    if (this.lines.length < SPARSE * room) this.foldBy(1);
    if (this.loop.findings.length) this.choose(0);
    else this.go(this.end - 1);
  }

  get columns(): Columns {
    return columnsOf(this.from, this.to, this.width / COLUMN);
  }

  get rowHeight(): number {
    return Math.max(LEAST_ROW, Math.min(MOST_ROW, Math.floor(this.height / Math.max(1, this.lines.length))));
  }

  /** Number of lines in view. */
  get room(): number {
    return Math.max(1, Math.min(this.lines.length, Math.floor(this.height / this.rowHeight)));
  }

  fold(depth: number): void {
    const module = this.lines[this.line]?.modules[0];
    this.depth = Math.max(1, Math.min(deepest(this.loop.modules), depth));
    this.lines = folded(this.loop.modules, this.depth);
    if (module !== undefined) this.line = this.lines.findIndex((line) => line.modules.includes(module));
    const found = this.loop.findings[this.finding]; // its module may be a different one of the line
    if (found && this.lineOf(found) >= 0) this.line = this.lineOf(found);
    this.reveal();
  }

  /** Fold or unfold one more part of the paths, if that changes any line. */
  foldBy(more: number): void {
    const before = this.lines.length;
    for (let depth = this.depth + more; depth >= 1 && depth <= deepest(this.loop.modules); depth += more) {
      this.fold(depth);
      if (this.lines.length !== before) return;
    }
  }

  show(measure: Measure): void {
    this.measure = measure;
    this.numbers = this.numbersBy(measure);
  }

  /** Row of the shown values that contains the selected step; -1 if there is none. */
  get row(): number {
    const row = rowAt(this.numbers.spans, this.step);
    return row >= 0 && this.numbers.spans[2 * row + 1] >= this.step ? row : -1;
  }

  /** Step of the last sample of the shown measure, if it was not taken in the selected step itself; else null. */
  get sampledAt(): number | null {
    return this.row < 0 || this.isMeasured(this.step, this.step) ? null : this.numbers.spans[2 * this.row];
  }

  isMeasured(first: number, last: number): boolean {
    return isMeasured(this.loop, this.measure, first, last);
  }

  /** Select a step, and scroll it into view. */
  go(step: number): void {
    this.step = Math.max(0, Math.min(this.end - 1, step));
    this.finding = -1;
    const wide = this.to - this.from;
    if (this.step < this.from) this.view(this.step, this.step + wide);
    else if (this.step >= this.to) this.view(this.step + 1 - wide, this.step + 1);
  }

  goLine(line: number): void {
    this.line = Math.max(0, Math.min(this.lines.length - 1, line));
    this.finding = -1;
    this.reveal();
  }

  /** Select the step that a cell shows: the one with the largest value in its column. */
  goCell(column: number, line: number): void {
    this.goLine(line);
    const { columns, numbers } = this;
    const start = columns.first + column * columns.size;
    const row = columns.size > 1 && this.lines[this.line] ? shownRow(numbers, this.lines[this.line], columns, column) : -1;
    this.go(row < 0 ? start : Math.max(start, numbers.spans[2 * row]));
  }

  /** Move the selection by columns. */
  move(by: number): void {
    const { columns } = this;
    const column = Math.floor((this.step - columns.first) / columns.size) + by;
    if (columns.size === 1) this.go(this.step + by);
    else if (column < 0 || column >= columns.count) this.go(this.step + by * columns.size);
    else this.goCell(column, this.line);
  }

  /** Select a finding, and the line of its module, or the line with the step's worst value. */
  choose(finding: number): void {
    const found = this.loop.findings[finding];
    if (!found) return;
    this.go(found.step);
    const line = this.lineOf(found);
    if (line >= 0) this.goLine(line);
    this.finding = finding;
  }

  private lineOf(finding: Finding): number {
    const { modules } = this.loop;
    if (finding.module !== null) {
      const module = modules.findIndex((name) => name === finding.module || name.startsWith(`${finding.module}.`));
      return module < 0 ? -1 : this.lines.findIndex((line) => line.modules.includes(module));
    }
    const row = rowAt(this.loop.rows, finding.step);
    if (row < 0) return -1;
    const bad = modules.findIndex((_, module) => isBad(this.loop.gradients[row * modules.length + module]));
    return bad < 0 ? -1 : this.lines.findIndex((line) => line.modules.includes(bad));
  }

  chooseBy(by: number): void {
    const count = this.loop.findings.length;
    if (count) this.choose((Math.max(this.finding, by > 0 ? -1 : 0) + by + count) % count);
  }

  view(from: number, to: number): void {
    const wide = Math.max(Math.min(FEWEST_STEPS, this.end), Math.min(this.end, to - from));
    this.from = Math.max(0, Math.min(this.end - wide, from));
    this.to = this.from + wide;
  }

  /** Zoom in or out around a step, which keeps its position. */
  zoom(by: number, about: number): void {
    const wide = Math.max(Math.min(FEWEST_STEPS, this.end), Math.min(this.end, (this.to - this.from) * by));
    const share = (about - this.from) / (this.to - this.from);
    this.view(about - share * wide, about + (1 - share) * wide);
  }

  pan(by: number): void {
    this.view(this.from + by, this.to + by);
  }

  scroll(by: number): void {
    this.offset = Math.max(0, Math.min(this.lines.length - this.room, this.offset + by));
  }

  /** Scroll the selected line into view. */
  reveal(): void {
    this.offset = Math.min(this.offset, this.line);
    this.offset = Math.max(this.offset, this.line - this.room + 1);
    this.scroll(0);
  }

  /** Return the median of a line's values over all steps. */
  usual(line: Line): number {
    const rows = this.numbers.spans.length / 2;
    return median(Array.from({ length: rows }, (_, row) => worst(this.numbers, row, line.modules)));
  }
}
