/** The picture of a training run: losses, learning rates and the heat map over one axis of steps. */

import { smallType } from "../canvas.ts";
import { grouped } from "../format.ts";
import { roundStep } from "../ticks.ts";
import { bins, running, scaleOf, type Scale } from "./curves.ts";
import { ABSENT, isBad, said, titleOf } from "./loop_data.ts";
import type { Drawing, Frame, Pen } from "./drawing.ts";
import { drawMemory, HEAD as MEMORY_HEAD, memoryHeight } from "./draw_memory.ts";
import { badCell, coloursOf, penOf, rampOf, write } from "./loop_canvas.ts";
import { MOST_ROW, type State } from "./state.ts";
import { decades, outliers, pooled } from "./heat_map.ts";

const RULER = 20;
const HEAD = 28;
const LOSS = 88;
/** Height of the losses where the heat map and the memory leave space. */
const MOST_LOSS = 240;
const RATE = 48;
const GAP = 18; // below the heat map
const FAINT = 0.25; // opacity of cells that repeat the last measured value
const LINES = ["ink", "pgrad", "held", "work"];
const MOST_NAMED = 3; // maximum number of names beside the losses

/** Divide the space. `looks`: steps with sampled memory; `varies`: whether it differs between them. */
export function frameOf(width: number, height: number, looks = 0, lines = Infinity, varies = true): Frame {
  const [left, right] = [176, width > 900 ? 80 : 64];
  const rulerTop = height - RULER;
  const spare = rulerTop - GAP - (LOSS + RATE + HEAD) - Math.max(1, lines) * MOST_ROW;
  const memory = memoryHeight(height, looks, spare, varies);
  const rateTop = LOSS + Math.max(0, Math.min(MOST_LOSS - LOSS, spare - memory));
  const heatTop = rateTop + RATE + HEAD;
  const memoryTop = rulerTop - memory;
  return { width, height, left, right, lossTop: 0, rateTop, heatTop, heatHeight: memoryTop - 6 - heatTop, memoryTop, rulerTop };
}

export function xOf(state: State, { width, left, right }: Frame): (step: number) => number {
  const scale = (width - left - right) / (state.to - state.from);
  return (step) => left + (step - state.from) * scale;
}

/** Draw everything except the selection. */
export function draw(canvas: HTMLCanvasElement, host: Element, state: State, frame: Frame): void {
  const pen = penOf(canvas, frame.width, frame.height);
  const drawing = { pen, c: coloursOf(host), state, frame, x: xOf(state, frame) };
  drawLoss(drawing);
  drawRates(drawing);
  drawHeat(drawing);
  drawMemory(drawing);
  drawRuler(drawing);
}

interface Band {
  top: number;
  height: number;
  wish: "log" | "linear";
}

/** Draw a curve for each optimizer with values. Return the scale and the steps per point, or null without values. */
function curve(drawing: Drawing, values: Float32Array, { top, height, wish }: Band): (Scale & { steps: number }) | null {
  const { pen, c, state, frame, x } = drawing;
  const { optimizers, rows } = state.loop;
  const wide = frame.width - frame.left - frame.right;
  const curves = optimizers.map((_, each) =>
    bins(rows, values, optimizers.length, each, [state.from, state.to], wide / 2),
  );
  const numbers = curves.flat().filter((bin) => bin.low !== undefined);
  const anyBad = curves.flat().some((bin) => bin.bad);
  if (!numbers.length && !anyBad) return null;
  const [low, high] = numbers.reduce(([l, h], bin) => [Math.min(l, bin.low), Math.max(h, bin.high)], [Infinity, -Infinity]);
  const scale = scaleOf(numbers.length ? low : 0, numbers.length ? high : 1, wish);
  const y = (value: number) => top + height * (1 - scale.share(value));
  if (numbers.length) {
    for (const tick of scale.ticks) {
      pen.fillStyle = c.line;
      pen.fillRect(frame.left, Math.round(y(tick)), wide, 1);
      write(pen, said(tick), frame.width - frame.right + 8, y(tick), c.ink3);
    }
  }
  pen.save();
  pen.beginPath();
  pen.rect(frame.left, top - 4, wide, height + 8);
  pen.clip();
  pen.lineJoin = "round";
  curves.forEach((found, each) => {
    const there = found.filter((bin) => bin.low !== undefined);
    const path = (points: [number, number][], colour: string, thick: number) => {
      pen.beginPath();
      for (const [at, value] of points) pen.lineTo(x(at + 0.5), y(value));
      pen.strokeStyle = colour;
      pen.lineWidth = thick;
      pen.stroke();
    };
    const colour = c[LINES[each % LINES.length]];
    const medians = wish === "log" ? running(there.map((bin) => bin.middle)) : there.map((bin) => bin.middle);
    if (wish === "log") {
      path(there.flatMap((bin): [number, number][] => [[bin.step, bin.low], [bin.step, bin.high]]), c.line2, 1);
      there.forEach((bin, at) => {
        if (!(medians[at] > 0 && bin.high > 3 * medians[at])) return;
        pen.fillStyle = c.ink2;
        dot(pen, x(bin.step + 0.5), y(bin.high));
      });
    }
    path(there.map((bin, at) => [bin.step, medians[at]]), colour, 1.6);
    if (there.length === 1) {
      // A line through one point is not visible.
      pen.fillStyle = colour;
      dot(pen, x(there[0].step + 0.5), y(medians[0]));
    }
    for (const bin of found) if (bin.bad) badCell(pen, x(bin.step + 0.5) - 5, top - 1, 10, 10, c);
  });
  pen.restore();
  return { ...scale, steps: Math.max(...curves.flat().map(({ steps }) => steps)) };
}

function dot(pen: Pen, x: number, y: number): void {
  pen.beginPath();
  pen.arc(x, y, 2.4, 0, 7);
  pen.fill();
}

function heading({ pen, c, frame }: Drawing, y: number, text: string, below = ""): void {
  write(pen, text, 12, y, c.ink, { weight: 600, size: 12 });
  if (below) write(pen, below, 12, y + 16, c.ink3, { most: frame.left - 24 });
}

function drawLoss(drawing: Drawing): void {
  const { pen, c, state, frame } = drawing;
  const scale = curve(drawing, state.loop.losses, { top: frame.lossTop + 12, height: frame.rateTop - 26, wish: "log" });
  const { optimizers } = state.loop;
  const steps = grouped(scale?.steps ?? 1);
  const [median, all] = steps === "1" ? ["median of 7 steps", "each step"] : [`median, 7 × ${steps} steps`, `range of ${steps} steps`];
  const thick = optimizers.length > 1 ? `thick: ${median}` : "";
  heading(drawing, frame.lossTop + 14, "Loss", scale ? [scale.log ? "log" : "", thick].filter(Boolean).join(", ") : "");
  if (!scale) return void write(pen, "no loss was recorded", frame.left + 4, frame.lossTop + 40, c.ink3);
  const more = optimizers.length - MOST_NAMED;
  const keys: [name: string, colour: string, thick: number][] =
    optimizers.length > 1
      ? optimizers.slice(0, MOST_NAMED).map((name, each) => [name, c[LINES[each % LINES.length]], 2])
      : [[median, c[LINES[0]], 2], [all, c.line2, 1], ["over 3 × the median", c.ink2, 0]];
  keys.forEach(([name, colour, thick], each) => {
    const y = frame.lossTop + 46 + 14 * each;
    pen.fillStyle = colour;
    if (thick) pen.fillRect(12, y - thick / 2, 10, thick);
    else dot(pen, 17, y);
    const others = more > 0 && each === MOST_NAMED - 1 ? ` and ${more} more` : "";
    write(pen, name + others, 28, y, c.ink2, { most: frame.left - 40 });
  });
}

function drawRates(drawing: Drawing): void {
  const { pen, c, state, frame } = drawing;
  pen.fillStyle = c.line;
  pen.fillRect(0, frame.rateTop - 3, frame.width, 1);
  const scale = curve(drawing, state.loop.learning_rates, { top: frame.rateTop + 10, height: RATE - 22, wish: "linear" });
  heading(drawing, frame.rateTop + 14, "Learning rate");
  if (!scale) write(pen, "no optimizer step was recorded", frame.left + 4, frame.rateTop + 20, c.ink3);
}

function drawKey({ pen, c, state, frame }: Drawing, [low, high]: readonly [number, number]): void {
  const y = frame.heatTop - 13;
  const ramp = rampOf(c);
  let x = frame.left + 4;
  x += write(pen, said(10 ** low), x, y, c.ink3) + 6;
  for (let at = 0; at < 80; at++) {
    pen.fillStyle = ramp(at / 80);
    pen.fillRect(x + at, y - 4, 1, 8);
  }
  x += 86;
  x += write(pen, said(10 ** high), x, y, c.ink3) + 24;
  const right = frame.width - frame.right;
  if (x + 90 > right) return;
  badCell(pen, x, y - 5, 12, 10, c);
  x += 17 + write(pen, "NaN or Inf", x + 17, y, c.ink2) + 20;
  if (x + 100 > right) return;
  pen.strokeStyle = c.warn;
  pen.lineWidth = 1.5;
  pen.strokeRect(x + 0.5, y - 4.5, 11, 9);
  x += 17 + write(pen, "10 × the median", x + 17, y, c.ink2) + 20;
  if (state.measure === "update ratio" && x + 190 < right) {
    pen.globalAlpha = FAINT;
    pen.fillStyle = ramp(0.7);
    pen.fillRect(x, y - 5, 12, 10);
    pen.globalAlpha = 1;
    write(pen, "not measured, last value repeated", x + 17, y, c.ink2);
    return;
  }
  if (!state.loop.skipped.size || x + 90 > right) return;
  pen.strokeStyle = c.line2;
  pen.lineWidth = 1;
  pen.strokeRect(x + 0.5, y - 4.5, 11, 9);
  write(pen, "step skipped", x + 17, y, c.ink2);
}

function drawHeat(drawing: Drawing): void {
  const { pen, c, state, frame, x } = drawing;
  pen.fillStyle = c.line;
  pen.fillRect(0, frame.heatTop - HEAD, frame.width, 1);
  heading(drawing, frame.heatTop - 13, state.measure === "gradient norm" ? "Gradient norm" : "Update ÷ weight");
  const { columns, lines, rowHeight, room, offset } = state;
  const shown = lines.slice(offset, offset + room);
  const cells = pooled(state.numbers, shown, columns);
  const [low, high] = decades(cells);
  const strange = outliers(cells, columns.count);
  if (!state.numbers.spans.length || !lines.length) {
    write(pen, "no step was measured", frame.left + 4, frame.heatTop + 16, c.ink3);
    return;
  }
  drawKey(drawing, [low, high]);
  const ramp = rampOf(c);
  const skipped = state.measure === "gradient norm" ? skippedColumns(state) : new Set<number>();
  shown.forEach((line, number) => drawName(drawing, line.name, line.modules.length, number));
  pen.save();
  pen.beginPath();
  pen.rect(frame.left, frame.heatTop - 1, frame.width - frame.left - frame.right, room * rowHeight + 2);
  pen.clip();
  for (let column = 0; column < columns.count; column++) {
    const first = columns.first + column * columns.size;
    const left = x(first);
    const wide = x(first + columns.size) - left;
    const gap = wide >= 6 ? 1 : 0;
    const isTaken = state.isMeasured(first, first + columns.size - 1);
    for (let number = 0; number < shown.length; number++) {
      const value = cells[number * columns.count + column];
      if (value === ABSENT) continue;
      const top = frame.heatTop + number * rowHeight;
      const [across, tall] = [wide - gap, rowHeight - 1];
      if (isBad(value)) badCell(pen, left, top, across, tall, c);
      else if (columns.size === 1 && skipped.has(column)) {
        pen.strokeStyle = c.line2;
        pen.lineWidth = 1;
        pen.strokeRect(left + 0.5, top + 0.5, across - 1, tall - 1);
      } else {
        pen.globalAlpha = isTaken ? 1 : FAINT;
        pen.fillStyle = ramp((Math.log10(value) - low) / (high - low));
        pen.fillRect(left, top, across + (gap ? 0 : 0.4), tall);
        pen.globalAlpha = 1;
      }
      if (!isTaken || !strange[number * columns.count + column]) continue;
      pen.strokeStyle = pen.fillStyle = c.warn;
      pen.lineWidth = 1.5;
      if (across >= 6) pen.strokeRect(left + 0.75, top + 0.75, across - 1.5, tall - 1.5);
      else for (const edge of [top, top + tall - 1.5]) pen.fillRect(left, edge, across, 1.5);
    }
  }
  pen.restore();
  drawScroll(drawing);
}

function skippedColumns({ columns, loop }: State): Set<number> {
  const found = new Set<number>();
  for (const row of loop.skipped) found.add(Math.floor((loop.rows[2 * row] - columns.first) / columns.size));
  return found;
}

function drawName({ pen, c, state, frame }: Drawing, name: string, modules: number, number: number): void {
  const on = state.line === number + state.offset;
  const y = frame.heatTop + (number + 0.5) * state.rowHeight - 0.5;
  const many = modules > 1 ? ` ×${modules}` : "";
  const style = { align: "right" as const, weight: on ? 600 : 400, size: state.rowHeight < 11 ? 9 : 11 };
  write(pen, `${titleOf(state.loop, name)}${many}`, frame.left - 10, y, on ? c.ink : c.ink2, {
    ...style,
    most: frame.left - 20,
  });
}

/** Draw the scroll bar if not all lines are in view. */
function drawScroll({ pen, c, state, frame }: Drawing): void {
  const { room, rowHeight, offset } = state;
  const all = state.lines.length;
  if (room >= all) return;
  const [tall, x] = [room * rowHeight, frame.width - frame.right + 6];
  pen.fillStyle = c.sunk;
  pen.fillRect(x, frame.heatTop, 4, tall);
  pen.fillStyle = c.line2;
  pen.fillRect(x, frame.heatTop + (tall * offset) / all, 4, (tall * room) / all);
}

/** Return about eight round step numbers. */
export function stepTicks(from: number, to: number, most: number): number[] {
  const size = roundStep(Math.max(1, (to - from) / Math.max(1, most)));
  const found: number[] = [];
  for (let step = Math.ceil(from / size) * size; step < to; step += size) found.push(step);
  return found;
}

function drawRuler({ pen, c, state, frame, x }: Drawing): void {
  const y = frame.rulerTop;
  pen.fillStyle = c.line;
  pen.fillRect(0, y, frame.width, 1);
  write(pen, "step", 12, y + 10, c.ink3);
  const wide = frame.width - frame.left - frame.right;
  for (const step of stepTicks(state.from, state.to, wide / 70)) {
    const at = x(step + 0.5);
    if (at > frame.width - frame.right || Math.abs(at - x(state.step + 0.5)) < 52) continue;
    write(pen, grouped(step), at, y + 10, c.ink3, { align: "center" });
  }
  for (const finding of state.loop.findings) {
    const at = x(finding.step + 0.5);
    if (at < frame.left || at > frame.width - frame.right) continue;
    if (finding.kind === "black box") {
      pen.strokeStyle = c.ink2;
      pen.lineWidth = 1.2;
      pen.strokeRect(at - 3.5, y - 6.5, 7, 5);
      continue;
    }
    pen.fillStyle = finding.kind === "non-finite" || finding.kind === "leak" ? c.bad : c.warn;
    pen.beginPath();
    pen.moveTo(at, y - 6);
    pen.lineTo(at - 4, y);
    pen.lineTo(at + 4, y);
    pen.fill();
  }
}

/** Draw the selection and the hovered cell on a separate canvas, so that moving them redraws nothing else. */
export function drawChosen(canvas: HTMLCanvasElement, host: Element, state: State, frame: Frame): void {
  const pen = penOf(canvas, frame.width, frame.height);
  const c = coloursOf(host);
  const x = xOf(state, frame);
  const { columns, rowHeight, room, offset } = state;
  const first = columns.first + Math.floor((state.step - columns.first) / columns.size) * columns.size;
  const [left, right] = [Math.max(frame.left, x(first)), Math.min(frame.width - frame.right, x(first + columns.size))];
  const wide = Math.max(2, right - left);
  if (right < frame.left || left > frame.width - frame.right) return;
  pen.save();
  pen.beginPath(); // without crossing the text between the parts
  for (const [top, end] of [
    [0, frame.heatTop - HEAD],
    [frame.heatTop - 3, frame.memoryTop],
    [frame.memoryTop + MEMORY_HEAD, frame.rulerTop],
  ]) {
    if (end > top) pen.rect(0, top, frame.width, end - top);
  }
  pen.clip();
  pen.strokeStyle = c.accent;
  pen.lineWidth = 1.5;
  pen.strokeRect(left - 1.5, 3, wide + 2, frame.rulerTop - 5);
  pen.restore();
  const said = `step ${grouped(state.step)}`;
  pen.font = smallType(600);
  const across = pen.measureText(said).width + 14;
  const at = Math.max(frame.left - 20, Math.min(frame.width - across, left + wide / 2 - across / 2));
  pen.fillStyle = c.accent;
  pen.beginPath();
  pen.roundRect(at, frame.rulerTop + 3, across, 15, 3);
  pen.fill();
  write(pen, said, at + across / 2, frame.rulerTop + 11, c["accent-ink"], { align: "center", weight: 600 });
  const line = state.line - offset;
  if (line < 0 || line >= room) return;
  const top = frame.heatTop + line * rowHeight;
  pen.strokeStyle = c.panel;
  pen.lineWidth = 4;
  pen.strokeRect(left - 2, top - 2, wide + 4, rowHeight + 3);
  pen.strokeStyle = c.accent;
  pen.lineWidth = 2;
  pen.strokeRect(left - 2, top - 2, wide + 4, rowHeight + 3);
}

/** Return the line and the column at a point, or null if it is outside the heat map. */
export function cellAt(state: State, frame: Frame, px: number, py: number): { column: number; line: number } | null {
  const { columns, rowHeight, room, offset } = state;
  if (px < frame.left || px >= frame.width - frame.right) return null;
  const step = state.from + ((px - frame.left) / (frame.width - frame.left - frame.right)) * (state.to - state.from);
  const column = Math.max(0, Math.min(columns.count - 1, Math.floor((step - columns.first) / columns.size)));
  const line = Math.floor((py - frame.heatTop) / rowHeight);
  return { column, line: line >= 0 && line < room ? line + offset : -1 };
}
