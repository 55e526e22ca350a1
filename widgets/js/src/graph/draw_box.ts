/** Drawing of open boxes around their tasks, and of the labels of rows of chips. */

import type { PlacedBox, Rect } from "../layout/layout_types.ts";
import { grouped } from "../format.ts";
import type { Colours } from "../view_types.ts";
import type { Facts } from "./frame_state.ts";
import { drawChevron } from "./glyphs.ts";
import type { Pen, Span } from "./pen.ts";
import { LABEL, SMALLEST_TEXT } from "./draw_task.ts";

const RADIUS = 8;
/** Offset of the cards behind equal layers, pixels. */
const BEHIND = 3;
/** Size on the screen below which headers disappear: that of a label at the smallest scale of a first view. */
const SMALLEST_HEADER = 8.5;
const LARGEST_HEADER = 20;
/** Depth of boxes that are named at any scale, and their minimum height in lines of text. */
const OUTERMOST = 1;
const NAMED_FROM = 5;
const LARGEST_ROW_LABEL = 14;
export const HEADER_HEIGHT = 24;

export function drawOpenBox(pen: Pen, colours: Colours, placed: PlacedBox, rect: Rect): void {
  if (placed.box.layers) drawCardsBehind(pen, colours, rect, RADIUS);
  pen.rounded(rect, RADIUS, { fill: colours.box });
  pen.rounded(rect, RADIUS, { stroke: colours.line });
}

/** Draw two cards behind a box that represents equal layers. */
export function drawCardsBehind(pen: Pen, colours: Colours, rect: Rect, radius: number): void {
  for (const shift of [2 * BEHIND, BEHIND, 0]) {
    const card = { ...rect, x: rect.x + shift, y: rect.y + shift };
    pen.rounded(card, radius, { fill: colours.panel });
    pen.rounded(card, radius, { stroke: colours.line2 });
  }
}

/** Return whether names are larger than headers at this scale, and therefore cover content. */
export function areNamesFar(scale: number): boolean {
  return SMALLEST_HEADER / scale > LARGEST_HEADER;
}

/**
 * Draw chevron, name and class, on a ground that hides wires. At small scales only the names of the outermost boxes are
 * drawn.
 */
export function drawHeader(
  pen: Pen,
  colours: Colours,
  facts: Facts,
  placed: PlacedBox,
  rect: Rect,
  scale: number,
): void {
  const size = Math.max(LABEL, SMALLEST_HEADER / scale);
  const far = areNamesFar(scale);
  if (far && (placed.depth > OUTERMOST || rect.height < NAMED_FROM * size)) return;
  const ratio = size / LABEL;
  const y = rect.y + Math.max(13, size * 0.75);
  const x = rect.x + 8 * Math.min(ratio, 1.5);
  const before = far ? 0 : 13 * Math.min(ratio, 1.3);
  const title: Span = { text: titleOf(facts, placed), fill: colours.ink2, size, weight: 600 };
  const subtitle: Span = { text: placed.subtitle, fill: colours.ink3, size, weight: 400, gap: 6 };
  const spans = fitted(pen, placed.subtitle && !far ? [title, subtitle] : [title], rect.x + (placed.layersAt && !far ? placed.layersAt - 6 : rect.width - 8) - x - before);
  if (!spans.length) return;
  const ground = { x: x - 3, y: y - size * 0.7, width: pen.measure(spans) + before + 6, height: size * 1.4 };
  pen.rounded(ground, 3, { fill: colours.panel });
  for (let level = 0; level < placed.depth; level++) pen.rounded(ground, 3, { fill: colours.box });
  if (!far) drawChevron(pen, colours, x + 3, y, true);
  pen.text(x + before, y, spans);
}

/** Return the title of a box; for equal layers, that of the shown one. */
export function titleOf({ scene }: Facts, { box, title }: PlacedBox): string {
  const { layers } = box;
  return layers ? layers.titles[scene.choice.get(box.id) ?? layers.drawn] : title;
}

/** Return the path of a module; for equal layers, that of the shown one; "" if it is not a single module. */
export function pathOf({ scene }: Facts, { box }: PlacedBox): string {
  const { layers } = box;
  return layers ? layers.paths[scene.choice.get(box.id) ?? layers.drawn] : box.path;
}

/** Return the spans that fit, the last one shortened; empty if there is no space for a word. */
export function fitted(pen: Pen, spans: readonly Span[], room: number): Span[] {
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

/** Draw "Addmm ×50" and, below it, "48 of 50 done", as large as the space beside the chips allows. */
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
  // The label is not centred on the chips, because the header of the box may be directly above.
  const first = row.rect.y + 4;
  pen.text(right, first, [{ ...title, size }], "end");
  pen.text(right, first + 1.25 * size, [{ ...below, size }], "end");
}
