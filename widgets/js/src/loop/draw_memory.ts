/** Stacked memory of the sampled steps; memory held by earlier steps is hatched. */

import { hatch } from "../canvas.ts";
import { grouped, size } from "../format.ts";
import { BASELINE, HELD, rowAt, type Loop } from "./loop_data.ts";
import { write } from "./loop_canvas.ts";
import type { Drawing } from "./drawing.ts";

const TALL = 122;
const LOW = 96;
/** Height of memory that is the same in all steps, pixels. */
const FLAT = 140;
/** Largest difference of the memory between steps, relative, that counts as none. */
const SAME = 0.02;
export const HEAD = 20;
const FAINT = 0.16;

/**
 * Return the height of the memory strip: 0 if memory was not sampled or there is no space besides the heat map, else
 * the space that the heat map leaves, but little if the memory does not vary.
 */
export function memoryHeight(height: number, looks: number, spare: number, varies: boolean): number {
  if (!looks || height < 420) return 0;
  return Math.max(height < 620 ? LOW : TALL, varies ? spare : Math.min(spare, FLAT));
}

/** Return whether the memory differs between steps. */
export function variesIn(loop: Loop): boolean {
  const sums = Array.from({ length: loop.looks.length / 2 }, (_, row) => sum(bytesOf(loop, row)));
  return Math.min(...sums) < (1 - SAME) * Math.max(...sums);
}

/** Return the bytes of a row, in the order of HELD. */
function bytesOf(loop: Loop, row: number): number[] {
  return [...loop.memory.subarray(HELD.length * row, HELD.length * (row + 1))];
}

/** Return the bytes that existed before a step, in the order of BASELINE. */
export function baselineOf(loop: Loop, row: number): number[] {
  return loop.baselines.slice(BASELINE.length * row, BASELINE.length * (row + 1));
}

export const sum = (values: readonly number[]): number => values.reduce((all, each) => all + each, 0);

/** Return at most two round sizes below the highest one. */
export function sizeTicks(most: number): number[] {
  const unit = 2 ** Math.floor(Math.log2(Math.max(2, most / 2)));
  return [unit, 2 * unit].filter((each) => each <= 0.96 * most);
}

export function drawMemory({ pen, c, state, frame, x }: Drawing): void {
  const { loop } = state;
  const tall = frame.rulerTop - frame.memoryTop;
  const looks = loop.looks.length / 2;
  if (!tall) return;
  const [top, low] = [frame.memoryTop + HEAD, frame.rulerTop - 8];
  const befores = Array.from({ length: loop.baseline_steps.length / 2 }, (_, row) => sum(baselineOf(loop, row)));
  const most = Math.max(1, ...befores, ...Array.from({ length: looks }, (_, row) => sum(bytesOf(loop, row))));
  const y = (bytes: number) => low - (low - top) * (bytes / most);
  const right = frame.width - frame.right;
  pen.fillStyle = c.line;
  pen.fillRect(0, frame.memoryTop, frame.width, 1);
  for (const tick of sizeTicks(most)) {
    pen.fillStyle = c.line;
    pen.fillRect(frame.left, Math.round(y(tick)), right - frame.left, 1);
    write(pen, size(tick), right + 8, y(tick), c.ink3);
  }
  pen.save();
  pen.beginPath();
  pen.rect(frame.left, frame.memoryTop, right - frame.left, tall);
  pen.clip();
  const outline: [number, number][] = [];
  for (let row = 0; row < looks; row++) {
    const from = x(row ? loop.looks[2 * row] : 0);
    const to = x(row + 1 < looks ? loop.looks[2 * row + 2] : state.end);
    let below = 0;
    bytesOf(loop, row).forEach((bytes, kind) => {
      const [colour] = HELD[kind];
      const box = [from, y(below + bytes), to - from + (colour === "bad" ? 0 : 0.5), y(below) - y(below + bytes)] as const;
      below += bytes;
      pen.fillStyle = c[colour];
      if (colour === "bad") pen.globalAlpha = FAINT;
      pen.fillRect(...box);
      pen.globalAlpha = 1;
      if (colour === "bad" && box[3] > 0.5) hatch(pen, box, c.bad, 5);
    });
    outline.push([from, y(below)], [to, y(below)]);
  }
  pen.beginPath();
  for (const point of outline) pen.lineTo(...point);
  pen.strokeStyle = c.ink;
  pen.lineWidth = 1.2;
  pen.stroke();
  pen.beginPath();
  befores.forEach((bytes, row) => {
    const { baseline_steps: steps } = loop;
    pen.lineTo(x(row ? steps[2 * row] : 0), y(bytes));
    pen.lineTo(x(row + 1 < befores.length ? steps[2 * row + 2] : state.end), y(bytes));
  });
  pen.setLineDash([4, 3]);
  for (const [colour, width] of [[c.panel, 3], [c.ink, 1.2]] as const) {
    pen.strokeStyle = colour; // a light edge, so that the dashes are seen on each colour
    pen.lineWidth = width;
    pen.stroke();
  }
  pen.restore();
  legend({ pen, c, state, frame, x });
}

/** Draw the legend with the values of the selected step. */
function legend({ pen, c, state, frame }: Drawing): void {
  const { loop } = state;
  const row = Math.max(0, rowAt(loop.looks, state.step));
  const bytes = bytesOf(loop, row);
  const y = frame.memoryTop + 13;
  const right = frame.left - 10;
  write(pen, "Memory held", 12, y, c.ink, { weight: 600, size: 12 });
  write(pen, size(sum(bytes)), right, y, c.ink, { align: "right", weight: 600 });
  const seen = loop.looks[2 * row];
  const dashed = loop.baselines.length ? "; dashed: before the step" : "";
  const said = `when the backward of step ${grouped(seen)} began, without workspaces${dashed}`;
  write(pen, said, frame.left + 4, y, c.ink3, { most: frame.width - frame.left - frame.right - 8 });
  const pitch = Math.min(15, (frame.rulerTop - y - 12) / HELD.length);
  [...HELD].reverse().forEach(([colour, name], at) => {
    const middle = y + 8 + pitch * (at + 0.5);
    pen.fillStyle = c[colour];
    if (colour === "bad") {
      pen.globalAlpha = FAINT;
      pen.fillRect(12, middle - 4, 8, 8);
      pen.globalAlpha = 1;
      hatch(pen, [12, middle - 4, 8, 8], c.bad, 4);
    } else pen.fillRect(12, middle - 4, 8, 8);
    const wide = write(pen, size(bytes[HELD.length - 1 - at]), right, middle, c.ink2, { align: "right" });
    write(pen, name, 24, middle, c.ink2, { most: right - wide - 28 });
  });
}
