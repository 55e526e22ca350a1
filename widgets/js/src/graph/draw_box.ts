/** Open boxes around their tasks, and the labels of rows of chips. */

import type { PlacedBox, Rect } from "../layout/layout_types.ts";
import { grouped } from "../format.ts";
import type { Colours } from "../view_types.ts";
import type { Facts } from "./frame_state.ts";
import { drawChevron } from "./glyphs.ts";
import type { Pen, Span } from "./pen.ts";
import { LABEL, SMALLEST_TEXT } from "./draw_task.ts";

const RADIUS = 8;
/** The cards behind equal layers stand out so far, pixels. */
const BEHIND = 3;
/** Headers shrink to this on the screen, then disappear: as a label at the least scale of a first view, no larger. */
const SMALLEST_HEADER = 8.5;
const LARGEST_HEADER = 20;
/** The depth of boxes that are named from any distance, and how many lines of text they must be high. */
const OUTERMOST = 1;
const NAMED_FROM = 5;
const LARGEST_ROW_LABEL = 14;
export const HEADER_HEIGHT = 24;

export function drawOpenBox(pen: Pen, colours: Colours, placed: PlacedBox, rect: Rect): void {
  if (placed.box.layers) drawCardsBehind(pen, colours, rect, RADIUS);
  pen.rounded(rect, RADIUS, { fill: colours.box });
  pen.rounded(rect, RADIUS, { stroke: colours.line });
}

/** What is drawn once for equal layers lies on two more. */
export function drawCardsBehind(pen: Pen, colours: Colours, rect: Rect, radius: number): void {
  for (const shift of [2 * BEHIND, BEHIND, 0]) {
    const card = { ...rect, x: rect.x + shift, y: rect.y + shift };
    pen.rounded(card, radius, { fill: colours.panel });
    pen.rounded(card, radius, { stroke: colours.line2 });
  }
}

/** Whether names are larger than the headers: then they lie over what is in the boxes. */
export function areNamesFar(scale: number): boolean {
  return SMALLEST_HEADER / scale > LARGEST_HEADER;
}

/** Chevron, name and class, on a ground that hides wires. From afar only the names of the outermost boxes are left. */
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

/** Of equal layers the one that is shown. */
export function titleOf({ scene }: Facts, { box, title }: PlacedBox): string {
  const { layers } = box;
  return layers ? layers.titles[scene.choice.get(box.id) ?? layers.drawn] : title;
}

/** The path of a module, of equal layers that of the one that is shown; "" for what is no single module. */
export function pathOf({ scene }: Facts, { box }: PlacedBox): string {
  const { layers } = box;
  return layers ? layers.paths[scene.choice.get(box.id) ?? layers.drawn] : box.path;
}

/** As many of the spans as there is room for, the last one cut; none where not even a word has room. */
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
