/** Lifetimes: one bar per storage, those with most bytes × time first. */

import { bindScrubbing, drawCursor, hasRun, readAxis, type TimeAxis, x } from "../charts/axis.ts";
import { FAINT } from "../charts/stack.ts";
import { cut, fit, mixed, smallType } from "../charts/surface.ts";
import { el } from "../dom.ts";
import { CATEGORIES, type Memory } from "../model/document.ts";
import { levelsOfMemory, type MemoryLevels, type Segment } from "../model/memory.ts";
import { hasMoved } from "../store.ts";
import { count, grouped, nth, size } from "../text.ts";
import type { Colours, MakeView, Stage } from "../view.ts";

const FEW = 10;
const MANY = 40;
const ROW = 18;
const PADDING = 2;
const BAR = 8;
/** A bar is at least so wide: a storage of one task among many thousands is still seen. */
const LEAST_BAR = 1.5;
const NAME_LEFT = 12;
/** Between the names and the plot: room for the sign of what the forward made. */
const NAME_RIGHT = 22;

/** Changes after which it looks different, besides moves. */
const DRAWN_AFTER = ["hoveredT", "hoveredStorage", "rows"] as const;

type Largest = Memory["largest"][number];

interface Bar {
  storage: number;
  words: Largest;
  bytes: number;
  segments: Segment[];
  /** Places; -1: in the forward or before; null: alive at the end. */
  born: number;
  freed: number | null;
}

export const makeLifetimes: MakeView = (stage, parent) => {
  const { store } = stage;
  const heading = el("span", { class: "sub" });
  const more = el("button", { class: "sm" });
  const canvas = el("canvas", { "aria-hidden": "true" });
  const list = el("ul", { class: "sr", "aria-label": "lifetimes of storages, largest bytes × time first" });
  const wrap = el("div", { class: "life" }, canvas, list);
  const view = el(
    "section",
    { class: "strip lifetimes", "aria-label": "lifetimes" },
    el("div", { class: "head" }, el("h3", {}, "Lifetimes"), heading, more),
    wrap,
  );
  parent.append(view);

  let bars: Bar[] = [];
  let axis: TimeAxis | null = null;
  let width = 0;
  more.addEventListener("click", () => store.update({ rows: store.state.rows > FEW ? FEW : MANY }));
  bindScrubbing(canvas, stage, () => (bars.length ? axis : null));
  bindRows(canvas, stage, wrap, () => bars);

  const build = () => {
    const levels = store.memory ? levelsOfMemory(store.memory) : null;
    bars = levels ? barsOf(levels, store.state.rows) : [];
    view.hidden = !bars.length;
    wrap.style.height = `${bars.length * ROW + 10}px`;
    list.replaceChildren(...bars.map(itemOf));
    const others = (levels?.storages ?? 0) - bars.length;
    const isLong = store.state.rows > FEW;
    const extent = isLong && others ? `, ${bars.length} of ${count(bars.length + others, "storage")}` : "";
    heading.textContent = `largest bytes × time first${extent}`;
    more.textContent = isLong ? `show ${FEW}` : `+${grouped(others)} more`;
    more.setAttribute("aria-expanded", String(isLong));
    more.hidden = !isLong && others <= 0;
  };
  return {
    update(changed) {
      if (changed.has("tab") || changed.has("revision") || changed.has("rows")) build();
      return hasMoved(changed) || DRAWN_AFTER.some((name) => changed.has(name));
    },
    draw() {
      if (wrap.clientWidth !== width || axis?.places !== store.replay.length) {
        width = wrap.clientWidth;
        axis = readAxis(view, width, store.replay.length);
      }
      if (!bars.length || !width || !axis) return false;
      const context = fit(canvas, width, wrap.clientHeight);
      bars.forEach((bar, row) => drawRow(context, stage, axis!, bar, row, width));
      drawCursor(context, axis, store.state, stage.colours, 0, bars.length * ROW + 2 * PADDING + 2);
      return false;
    },
    dispose: () => view.remove(),
  };
};

function barsOf(levels: MemoryLevels, rows: number): Bar[] {
  const { largest, nbytes } = levels.memory;
  return largest.slice(0, rows).map((words) => ({
    storage: words.storage,
    words,
    bytes: nbytes[words.storage],
    segments: levels.segments(words.storage),
    ...levels.life(words.storage),
  }));
}

/** A row for those who don't see the bars. */
function itemOf({ storage, words, bytes, born, freed }: Bar): HTMLElement {
  const from = born < 0 ? "born in the forward" : `born in the ${nth(born + 1)}`;
  const to = freed === null ? "alive at the end" : `freed in the ${nth(freed + 1)}`;
  const data = { "data-storage": storage, "data-bytes": bytes, "data-born": born, "data-freed": freed ?? "never" };
  const attributes = Object.fromEntries(Object.entries(data).map(([name, value]) => [name, String(value)]));
  return el("li", attributes, `${words.name}, ${size(bytes)}, ${from}, ${to}`);
}

function drawRow(
  context: CanvasRenderingContext2D,
  { store, colours }: Stage,
  axis: TimeAxis,
  bar: Bar,
  row: number,
  width: number,
): void {
  const top = row * ROW + PADDING;
  const middle = top + ROW / 2;
  const isHovered = store.state.hoveredStorage === bar.storage;
  if (isHovered) {
    context.fillStyle = colours.sunk;
    context.fillRect(0, top, width, ROW);
  }
  context.font = smallType(400);
  context.fillStyle = isHovered ? colours.ink : colours.ink2;
  context.textAlign = "left";
  context.fillText(cut(context, bar.words.name, axis.left - NAME_LEFT - NAME_RIGHT), NAME_LEFT, middle + 0.5);
  context.textAlign = "right";
  context.fillText(size(bar.bytes), width - NAME_LEFT, middle + 0.5);
  context.fillStyle = colours.line;
  context.fillRect(axis.left, Math.round(middle), axis.right - axis.left, 1);
  for (const segment of bar.segments) drawSegment(context, axis, segment, hasRun(store), middle, colours);
  context.fillStyle = colours.ink2;
  if (bar.born < 0) drawArrow(context, axis.left - 3, -1, middle);
  if (bar.freed === null) drawArrow(context, axis.right + 3, 1, middle);
  else {
    context.fillStyle = colours.ink;
    context.fillRect(x(axis, bar.segments[bar.segments.length - 1].to) - 1, middle - 6, 1.5, 12);
  }
}

function drawSegment(
  context: CanvasRenderingContext2D,
  axis: TimeAxis,
  { category, from, to }: Segment,
  now: number,
  middle: number,
  colours: Colours,
): void {
  const colour = colours[CATEGORIES[category].key];
  const start = x(axis, from);
  const end = Math.max(x(axis, to), start + LEAST_BAR);
  const border = now >= to ? end : now <= from ? start : x(axis, now);
  context.fillStyle = colour;
  context.fillRect(start, middle - BAR / 2, border - start, BAR);
  context.fillStyle = mixed(colour, colours.panel, FAINT);
  context.fillRect(border, middle - BAR / 2, end - border, BAR);
}

/** A small triangle that points left (-1) or right (1). */
function drawArrow(context: CanvasRenderingContext2D, base: number, direction: number, middle: number): void {
  context.beginPath();
  context.moveTo(base + 5 * direction, middle);
  context.lineTo(base, middle - 3.5);
  context.lineTo(base, middle + 3.5);
  context.fill();
}

/** The row under the pointer: its tooltip, and the storage for other views. */
function bindRows(canvas: HTMLElement, stage: Stage, host: HTMLElement, bars: () => readonly Bar[]): void {
  const { store } = stage;
  canvas.addEventListener("pointermove", (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    const bar = bars()[Math.floor((event.clientY - top - PADDING) / ROW)];
    store.update({ hoveredStorage: bar?.storage ?? null });
    stage.tip(bar ? tooltip(bar) : null, host, event.clientX - left, event.clientY - top);
  });
  canvas.addEventListener("pointerleave", () => {
    store.update({ hoveredStorage: null });
    stage.tip(null);
  });
}

function tooltip({ words, bytes }: Bar): string {
  const head = `${words.name}, ${size(bytes)}`;
  return [head, `made by: ${words.made_by}`, `kept: ${words.kept_by}`, `freed: ${words.freed_by}`].join("\n");
}
