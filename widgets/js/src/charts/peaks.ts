/** Where memory peaks: a ring with its sentence on the stack, and every policy's peak named in the right gutter. */

import { nth, size } from "../text.ts";
import type { Colours } from "../view.ts";
import type { TimeAxis } from "./axis.ts";
import { x } from "./axis.ts";
import type { Curve } from "../model/document.ts";
import { drawCurve, VEIL } from "./stack.ts";
import { cut, mixed, smallType } from "./surface.ts";

/** Height of one name in the gutter. */
const ROW = 15;
/** Left of it is the scale, which the sentence must not cover. */
const SCALE_WIDTH = 56;
const LEAST_SENTENCE = 90;
/** A gutter that is narrower has no room for names as they are. */
const NARROW = 100;

export interface PolicyPeak {
  title: string;
  bytes: number;
  dash: readonly number[];
  shown: boolean;
  /** Instead of the title, where there is no room for it. */
  short?: string;
  /** A plan's curve instead of a policy's. */
  curve?: Curve["name"];
  /** Its height in the plot, CSS pixels; above the plot where the scale does not reach so far. */
  y: number;
}

/** Heights for names of `ROW` pixels, near their own ones, in order, inside the plot, without overlap. */
export function spread(heights: readonly number[], top: number, bottom: number): number[] {
  const placed: number[] = [];
  for (const height of heights) placed.push(Math.max(height, top, (placed.at(-1) ?? -Infinity) + ROW));
  let limit = bottom;
  for (let at = placed.length - 1; at >= 0; at--) {
    placed[at] = Math.min(placed[at], limit);
    limit = placed[at] - ROW;
  }
  return placed;
}

/** The peaks that have room, highest first, the shown policy's among them, and how many are left out. */
export function fitting(
  peaks: readonly PolicyPeak[],
  top: number,
  bottom: number,
): { named: PolicyPeak[]; left: number } {
  const sorted = [...peaks].sort((one, other) => one.y - other.y || Number(other.shown) - Number(one.shown));
  const room = Math.max(1, Math.floor((bottom - top) / ROW) + 1);
  if (sorted.length <= room) return { named: sorted, left: 0 };
  const isKept = (peak: PolicyPeak) => peak.shown || peak.curve !== undefined;
  const kept = sorted.filter(isKept);
  const others = sorted.filter((peak) => !isKept(peak)).slice(0, Math.max(0, room - 1 - kept.length));
  const named = sorted.filter((peak) => isKept(peak) || others.includes(peak));
  return { named, left: sorted.length - named.length };
}

/** In the unit of the largest: "51.0", "113". `all` are the bytes of the peaks beside it. */
export function inUnit(bytes: number, all: readonly number[]): string {
  const most = Math.max(...all);
  const unit = 1024 ** Math.max(0, Math.min(4, Math.floor(Math.log2(Math.max(most, 1)) / 10)));
  if (unit === 1) return String(bytes);
  if (bytes && bytes / unit < 0.05) return "<0.1";
  return (bytes / unit).toFixed(bytes / unit < 99.95 ? 1 : 0);
}

/** Names each policy's peak at its own height, with the pattern of its line. */
export function drawPeaks(
  context: CanvasRenderingContext2D,
  axis: TimeAxis,
  peaks: readonly PolicyPeak[],
  colours: Colours,
  span: { top: number; bottom: number; width: number },
): void {
  const { named, left } = fitting(peaks, span.top, span.bottom);
  const limits = left ? span.bottom - ROW : span.bottom;
  const rows = spread(named.map((peak) => Math.max(span.top, peak.y)), span.top, limits);
  const swatch = span.width - axis.right < NARROW ? 8 : 14;
  const all = peaks.map((peak) => peak.bytes);
  named.forEach((peak, index) => {
    drawLeader(context, axis.right, Math.max(span.top, peak.y), rows[index], colours);
    drawPattern(context, axis.right + 10, rows[index], swatch, peak, colours);
    const amount = inUnit(peak.bytes, all) + (peak.y < span.top ? " ↑" : "");
    drawName(context, axis.right + swatch + 15, rows[index], span.width - 4, peak, amount, colours);
  });
  if (!left) return;
  context.font = smallType(400);
  context.textAlign = "left";
  context.fillStyle = colours.ink3;
  context.fillText(`+${left} more`, axis.right + swatch + 15, span.bottom + 0.5);
}

function drawLeader(context: CanvasRenderingContext2D, from: number, y: number, row: number, colours: Colours): void {
  context.strokeStyle = colours.line2;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(from, y);
  context.lineTo(from + 4, y);
  context.lineTo(from + 8, row);
  context.stroke();
}

function drawPattern(
  context: CanvasRenderingContext2D,
  from: number,
  y: number,
  width: number,
  peak: PolicyPeak,
  colours: Colours,
): void {
  if (peak.shown) {
    context.fillStyle = colours.ink;
    context.fillRect(from, y - 4, width, 8);
    return;
  }
  if (peak.curve) {
    context.fillStyle = mixed(colours.ink3, colours.panel, VEIL);
    if (peak.curve === "plain") context.fillRect(from, y - 1, width, 6);
    const path = new Path2D();
    path.moveTo(from, y - (peak.curve === "plain" ? 1 : 0));
    path.lineTo(from + width, y - (peak.curve === "plain" ? 1 : 0));
    return drawCurve(context, colours, peak.curve, path);
  }
  context.strokeStyle = colours.ink2;
  context.lineWidth = 1.5;
  context.setLineDash([...peak.dash]);
  context.beginPath();
  context.moveTo(from, y);
  context.lineTo(from + width, y);
  context.stroke();
  context.setLineDash([]);
}

function drawName(
  context: CanvasRenderingContext2D,
  from: number,
  y: number,
  to: number,
  peak: PolicyPeak,
  amount: string,
  colours: Colours,
): void {
  context.textAlign = "left";
  context.fillStyle = peak.shown ? colours.ink : colours.ink2;
  context.font = smallType(peak.shown ? 600 : 400);
  const amountWidth = context.measureText(amount).width;
  const numbered = context.font;
  context.font = smallType(600);
  const room = to - from - amountWidth - 5;
  const whole = context.measureText(peak.title).width <= room;
  const name = cut(context, whole ? peak.title : (peak.short ?? peak.title.replace(/^branch /, "br. ")), room);
  context.fillText(name, from, y + 0.5);
  const nameWidth = name ? context.measureText(name).width + 5 : 0;
  context.font = numbered;
  context.fillText(amount, from + nameWidth, y + 0.5);
}

/** The peak in words: what stands first, and the sentence after it. */
export function peakWords(bytes: number, place: number, places: number, sentence: string): [string, string] {
  return [`peak ${size(bytes)} ${whenWords(place, places)}`, sentence ? `: ${sentence}` : ""];
}

function whenWords(place: number, places: number): string {
  if (place < 0) return "before the first task";
  return place >= places ? "after the last task" : `in the ${nth(place + 1)}`;
}

export interface Rectangle {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Draws the ring at the peak and as much of its sentence as there is room for. Returns where the words are. */
export function drawPeak(
  context: CanvasRenderingContext2D,
  axis: TimeAxis,
  peak: { time: number; y: number; words: [string, string] },
  colours: Colours,
): Rectangle {
  const at = x(axis, peak.time);
  const room = axis.right - axis.left - SCALE_WIDTH - 8;
  context.font = smallType(600);
  const first = cut(context, peak.words[0], room);
  const firstWidth = context.measureText(first).width;
  context.font = smallType(400);
  const second = room - firstWidth < LEAST_SENTENCE ? "" : cut(context, peak.words[1], room - firstWidth);
  const width = firstWidth + context.measureText(second).width;
  const from = Math.max(axis.left + SCALE_WIDTH, Math.min(axis.right - width - 4, at - width / 2));
  const y = peak.y - 14;
  context.fillStyle = colours.panel;
  context.beginPath();
  context.roundRect(from - 4, y - 8, width + 8, 16, 3);
  context.fill();
  drawRing(context, at, peak.y, colours);
  context.textAlign = "left";
  context.font = smallType(600);
  context.fillStyle = colours.ink;
  context.fillText(first, from, y + 0.5);
  context.font = smallType(400);
  context.fillStyle = colours.ink2;
  context.fillText(second, from + firstWidth, y + 0.5);
  return { left: from - 4, top: y - 8, width: width + 8, height: 16 };
}

function drawRing(context: CanvasRenderingContext2D, at: number, y: number, colours: Colours): void {
  context.fillStyle = colours.panel;
  context.strokeStyle = colours.ink;
  context.lineWidth = 1.6;
  context.beginPath();
  context.arc(at, y, 3.4, 0, 2 * Math.PI);
  context.fill();
  context.stroke();
}
