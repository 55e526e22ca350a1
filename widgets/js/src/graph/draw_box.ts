/** Boxes: open ones around their tasks, closed ones as cards that say how far they are, and the labels of rows. */

import type { PlacedBox, Rect } from "../layout/placed.ts";
import type { ShownState } from "../model/replay.ts";
import { count, grouped } from "../text.ts";
import type { Colours } from "../view.ts";
import { cardOpacity, countOf, type Facts } from "./facts.ts";
import { drawBreakpoint, drawChevron, drawGlyph } from "./glyphs.ts";
import { grown } from "./grid.ts";
import type { Paint, Pen, Span } from "./pen.ts";
import { LABEL, paintOf, SMALLEST_TEXT } from "./draw_spot.ts";

const RADIUS = 8;
/** The cards behind a closed one stand out so far, pixels. */
const BEHIND = 3;
/** Headers shrink to this on the screen, then disappear. */
const SMALLEST_HEADER = 9;
const LARGEST_HEADER = 20;
/** The depth of boxes that are named from any distance, and how many lines of text they must be high. */
const OUTERMOST = 1;
const NAMED_FROM = 5;
const LARGEST_ROW_LABEL = 14;
export const HEADER_HEIGHT = 24;

export function drawOpenBox(pen: Pen, colours: Colours, rect: Rect): void {
  pen.rounded(rect, RADIUS, { fill: colours.box });
  pen.rounded(rect, RADIUS, { stroke: colours.line });
}

/** Whether names are larger than the headers: then they lie over what is in the boxes. */
export function areNamesFar(scale: number): boolean {
  return SMALLEST_HEADER / scale > LARGEST_HEADER;
}

/** Chevron, name and class, on a ground that hides wires. From afar only the names of the outermost boxes are left. */
export function drawHeader(pen: Pen, colours: Colours, placed: PlacedBox, rect: Rect, scale: number): void {
  const size = Math.max(LABEL, SMALLEST_HEADER / scale);
  const far = areNamesFar(scale);
  if (far && (placed.depth > OUTERMOST || rect.height < NAMED_FROM * size)) return;
  const ratio = size / LABEL;
  const y = rect.y + Math.max(13, size * 0.75);
  const x = rect.x + 8 * Math.min(ratio, 1.5);
  const before = far ? 0 : 13 * Math.min(ratio, 1.3);
  const title: Span = { text: placed.title, fill: colours.ink2, size, weight: 600 };
  const subtitle: Span = { text: placed.subtitle, fill: colours.ink3, size, weight: 400, gap: 6 };
  const spans = fitted(pen, placed.subtitle && !far ? [title, subtitle] : [title], rect.x + rect.width - 8 - x - before);
  if (!spans.length) return;
  const ground = { x: x - 3, y: y - size * 0.7, width: pen.measure(spans) + before + 6, height: size * 1.4 };
  pen.rounded(ground, 3, { fill: colours.panel });
  for (let level = 0; level < placed.depth; level++) pen.rounded(ground, 3, { fill: colours.box });
  if (!far) drawChevron(pen, colours, x + 3, y, true);
  pen.text(x + before, y, spans);
}

/** As many of the spans as there is room for, the last one cut; none where not even a word has room. */
function fitted(pen: Pen, spans: readonly Span[], room: number): Span[] {
  for (let most = spans.length; most > 0; most--) {
    const kept = spans.slice(0, most);
    if (pen.measure(kept) <= room) return kept;
  }
  const [first] = spans;
  let length = Math.min(first.text.length, Math.floor((first.text.length * room) / pen.measure([first])));
  for (; length >= 3; length--) {
    const cut = { ...first, text: `${first.text.slice(0, length).trimEnd()}…` };
    if (pen.measure([cut]) <= room) return [cut];
  }
  return [];
}

/** A closed box: two more cards behind it, its name, how many of its tasks have run, and the one that runs. */
export function drawCard(pen: Pen, colours: Colours, facts: Facts, index: number, rect: Rect, scale: number): void {
  const placed = facts.scene.layout.boxes[index];
  const { state, done, planned, size } = countOf(facts, index);
  pen.alpha = cardOpacity(facts, index);
  for (const shift of [2 * BEHIND, BEHIND]) {
    pen.rounded({ ...rect, x: rect.x + shift, y: rect.y + shift }, RADIUS, { fill: colours.panel });
    pen.rounded({ ...rect, x: rect.x + shift, y: rect.y + shift }, RADIUS, { stroke: colours.line });
  }
  drawCardRing(pen, colours, facts, index, rect, scale);
  const paint = cardPaint(colours, state);
  pen.rounded(rect, RADIUS, { ...paint, width: (paint.width ?? 1) * Math.max(1, 0.7 / scale) });
  if (facts.hovered !== null && facts.scene.cardAround(facts.hovered) === placed) {
    pen.rounded(rect, RADIUS, { stroke: colours.ink, width: 1.2 });
  }
  if (LABEL * scale < SMALLEST_TEXT) drawFarCard(pen, colours, placed, rect, scale, state);
  else drawCardText(pen, colours, facts, index, rect);
  drawProgress(pen, colours, rect, { done: done / size || 0, planned: planned / size || 0 }, state);
  const breakpoint = facts.cardBreakpoints.get(placed);
  if (breakpoint !== undefined) {
    const radius = 4.8 * Math.max(1, 0.9 / scale);
    drawBreakpoint(pen, colours, rect.x - 1, rect.y + rect.height / 2, radius, breakpoint);
  }
  pen.alpha = 1;
}

/** As its tasks: done when all are, accent as soon as one is ready or runs. */
function cardPaint(colours: Colours, state: ShownState): Paint {
  return paintOf(colours, state === "running" ? "ready" : state);
}

function drawCardRing(pen: Pen, colours: Colours, facts: Facts, index: number, rect: Rect, scale: number): void {
  const { scene, ringed } = facts;
  const pixel = Math.max(1, 0.9 / scale);
  if (ringed >= 0 && scene.cardAround(ringed) === scene.layout.boxes[index]) {
    const stroke = countOf(facts, index).running === ringed ? colours.accent : colours.ink;
    pen.rounded(grown(rect, 3.5 * pixel), RADIUS + 3.5 * pixel, { stroke, width: 1.5 * pixel });
  }
}

function drawCardText(pen: Pen, colours: Colours, facts: Facts, index: number, rect: Rect): void {
  const placed = facts.scene.layout.boxes[index];
  const { state } = countOf(facts, index);
  const line = rect.height < 46 ? { title: 13, said: 28 } : { title: 16, said: 33 };
  drawChevron(pen, colours, rect.x + 13, rect.y + line.title, false);
  const title: Span = { text: placed.title, fill: colours.ink, size: LABEL, weight: 600 };
  const subtitle: Span = { text: placed.subtitle, fill: colours.ink2, size: LABEL, weight: 400, gap: 6 };
  const spans = fitted(pen, placed.subtitle ? [title, subtitle] : [title], rect.width - 48);
  pen.text(rect.x + 23, rect.y + line.title, spans);
  const ink = state === "running" ? { ink: colours.accent } : {};
  drawGlyph(pen, colours, state, rect.x + rect.width - 14, rect.y + line.title, 4, ink);
  const said: Span = { text: cardSays(facts, index), fill: colours.ink2, size: LABEL, weight: 400 };
  pen.text(rect.x + 12, rect.y + line.said, [said]);
  drawHidden(pen, colours, facts, index, rect.x + 12 + pen.measure([said]), rect, rect.y + line.said);
}

/** "7 of 43 tasks done"; while something is searched for, how many were found. */
export function cardSays(facts: Facts, index: number): string {
  const { done, planned, size } = countOf(facts, index);
  const all = facts.scene.layout.boxes[index].box.size;
  if (facts.cardMatches) return `${grouped(facts.cardMatches[index])} of ${count(all, "task")} found`;
  if (size === 0) return `${count(all, "task")}, none runs`;
  if (planned === size) return `${count(size, "task")}, all planned`;
  if (planned) return `${grouped(done)} done, ${grouped(planned)} planned`;
  if (done === size) return `${count(size, "task")}, all done`;
  return done ? `${grouped(done)} of ${count(size, "task")} done` : count(all, "task");
}

/** The name of the task in the box that is selected or runs, where there is room for it. */
function drawHidden(
  pen: Pen,
  colours: Colours,
  facts: Facts,
  index: number,
  from: number,
  rect: Rect,
  y: number,
): void {
  const { scene, ringed } = facts;
  if (ringed < 0 || scene.cardAround(ringed) !== scene.layout.boxes[index]) return;
  const runs = countOf(facts, index).running === ringed;
  const fill = runs ? colours.accent : colours.ink;
  const name: Span = { text: scene.graph.titles[ringed], fill, size: LABEL, weight: 500 };
  const right = rect.x + rect.width - 10;
  const spans = fitted(pen, [name], right - from - 10);
  if (spans.length) pen.text(right, y, spans, "end");
}

/** Too far for all but the name; without room for that, done is dark as for tasks. */
function drawFarCard(
  pen: Pen,
  colours: Colours,
  placed: PlacedBox,
  rect: Rect,
  scale: number,
  state: ShownState,
): void {
  const size = SMALLEST_HEADER / scale;
  const title: Span = { text: placed.title, fill: colours.ink, size, weight: 600 };
  const spans = size <= rect.height * 0.75 ? fitted(pen, [title], rect.width - 12) : [];
  if (spans.length) pen.text(rect.x + rect.width / 2, rect.y + rect.height / 2 - 2, spans, "middle");
  else if (state === "done") pen.rounded(rect, RADIUS, { fill: colours["done-ink"] });
}

interface Shares {
  done: number;
  planned: number;
}

/** What has run is solid, what is planned behind it faint. */
function drawProgress(pen: Pen, colours: Colours, rect: Rect, { done, planned }: Shares, state: ShownState): void {
  const track = { x: rect.x + 12, y: rect.y + rect.height - 7, width: rect.width - 24, height: 3 };
  pen.rounded(track, 1.5, { fill: state === "done" ? colours.line2 : colours.line });
  const fill = state === "done" ? colours["done-ink"] : colours.accent;
  if (planned > 0) pen.rounded({ ...track, width: track.width * (done + planned) }, 1.5, { fill: colours.line2 });
  if (done > 0) pen.rounded({ ...track, width: track.width * done }, 1.5, { fill });
}

function rowSays({ replay, t, ran }: Facts, tasks: readonly number[]): string {
  let done = 0;
  let planned = 0;
  for (const task of tasks) {
    if (replay.place[task] < ran) done++;
    else if (replay.place[task] < t) planned++;
  }
  if (planned) return `${grouped(done)} done, ${grouped(planned)} planned`;
  return done === tasks.length ? "all done" : `${grouped(done)} of ${grouped(tasks.length)} done`;
}

/** "Addmm ×50" and, below it, "48 of 50 done": as large as there is room for beside the chips. */
export function drawRowLabel(pen: Pen, colours: Colours, facts: Facts, index: number, scale: number): void {
  const { scene } = facts;
  const row = scene.layout.rows[index];
  const room = scene.rowRooms[index];
  const said = rowSays(facts, row.tasks);
  const title: Span = { text: row.label, fill: colours.ink, size: LABEL, weight: 600 };
  const below: Span = { text: said, fill: colours.ink2, size: LABEL, weight: 400 };
  const wide = Math.max(pen.measure([title]), pen.measure([below]));
  const largest = Math.min(LARGEST_ROW_LABEL, (LABEL * room) / wide);
  const size = Math.min(largest, Math.max(LABEL, SMALLEST_HEADER / scale));
  if (size * scale < SMALLEST_TEXT) return;
  const right = row.rect.x + row.rect.width;
  // Not centred on the chips: the header of the box may be right above.
  const first = row.rect.y + 4;
  pen.text(right, first, [{ ...title, size }], "end");
  pen.text(right, first + 1.25 * size, [{ ...below, size }], "end");
}
