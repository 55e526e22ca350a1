/** Drawing of closed boxes, one row each: a module with a progress line, or an inconspicuous chain of views. */

import { runningView } from "../layout/box_cells.ts";
import type { PlacedBox, Rect } from "../layout/layout_types.ts";
import type { ShownState } from "../model/replay.ts";
import { count, grouped } from "../format.ts";
import type { Colours } from "../view_types.ts";
import type { BoxCount } from "./box_counts.ts";
import { creationOfCards, creationStep, inked, shaded } from "./creation_shade.ts";
import { drawCardsBehind, fitted } from "./draw_box.ts";
import { captionInk, drawRing, farPaint, LABEL, labelInk, paintOf, SMALLEST_TEXT } from "./draw_task.ts";
import { cardOpacity, countOf, type Facts } from "./frame_state.ts";
import { drawBreakpoint, drawGlyph } from "./glyphs.ts";
import type { Pen, Span } from "./pen.ts";

const RADIUS = 5;
/** Left end of the text and of the line below it. */
const TEXT = 20;
const LINE_HEIGHT = 2;
/** Opacity of the line's track. */
const FAINT = 0.35;

export function drawFolded(pen: Pen, colours: Colours, facts: Facts, index: number, rect: Rect, scale: number): void {
  const placed = facts.scene.layout.boxes[index];
  const counted = countOf(facts, index);
  const { state } = counted;
  const isPlan = state === "running" && facts.unreal !== null;
  const look = isPlan ? "ready" : state;
  const isQuiet = placed.box.kind === "views";
  const pixel = Math.max(1, 0.9 / scale);
  pen.alpha = cardOpacity(facts, index);
  if (facts.ringed >= 0 && facts.scene.cardAround(facts.ringed) === placed) {
    drawRing(pen, colours, counted.running === facts.ringed ? state : "waiting", rect, RADIUS, pixel);
  }
  const isFar = LABEL * scale < SMALLEST_TEXT;
  if (placed.box.layers) drawCardsBehind(pen, colours, rect, RADIUS);
  const { first, last } = creationOfCards(facts.scene);
  const step = creationStep(facts, (first[index] + last[index]) / 2);
  if (!isQuiet || look === "running" || isFar || step >= 0) {
    pen.rounded(rect, RADIUS, shaded(colours, step, isFar ? farPaint(colours, look, scale) : paintOf(colours, look), isFar ? 1 : undefined));
  }
  if (facts.hovered.some((task) => facts.scene.cardAround(task) === placed)) {
    pen.rounded(rect, RADIUS, { stroke: colours.ink, width: 1.2 });
  }
  if (!isFar) {
    const ink = isPlan ? colours.accent : undefined;
    const place = state === "ready" ? leastPlace(facts, index) : 0;
    drawGlyph(pen, colours, state, rect.x + 11, rect.y + rect.height / 2, 3.8, { ink, place });
    const room = rect.width - TEXT - 6;
    const label = (task: number) => fitted(pen, rowLabel(colours, facts, placed, task, look), room);
    const [named, usual] = [label(counted.running), label(-1)];
    const spans = named.length < usual.length ? usual : named;
    pen.text(rect.x + TEXT, rect.y + rect.height / 2, inked(colours, spans, step, look));
    if (!isQuiet) drawProgress(pen, colours, rect, counted, look);
  }
  const breakpoint = facts.cardBreakpoints.get(placed);
  if (breakpoint !== undefined) drawBreakpoint(pen, colours, rect.x - 3, rect.y + rect.height / 2, 4.8 * pixel, breakpoint);
  pen.alpha = 1;
}

/** Return the lowest numbered queue place of the ready tasks in a closed box; 0 if none of them has a number. */
function leastPlace({ scene, queuePlaces }: Facts, index: number): number {
  for (const [task, place] of queuePlaces) if (scene.cardOf[task] === index) return place; // in queue order
  return 0;
}

/** Return the label: "fc Linear", "⋯ 7 views"; while `task` runs "fc Addmm", "Clone ⋯ 7". -1: none runs. */
function rowLabel(
  colours: Colours,
  { scene }: Facts,
  { box, title, subtitle }: PlacedBox,
  running: number,
  look: ShownState,
): Span[] {
  const name = running >= 0 ? scene.graph.titles[running] : "";
  const isLoud = look === "ready" || look === "running";
  const ink = labelInk(colours, look);
  if (box.kind === "views") {
    if (name) return [{ text: runningView(name, box.children.length), fill: ink, size: LABEL, weight: 500 }];
    return [{ text: title, fill: colours.ink3, size: LABEL, weight: 400 }];
  }
  const faint = captionInk(colours, look);
  const first: Span = { text: title, fill: ink, size: LABEL, weight: isLoud ? 600 : 500 };
  const second = name || subtitle;
  return second ? [first, { text: second, fill: faint, size: LABEL, weight: 400, gap: 5 }] : [first];
}

/** Draw the progress: a solid line for executed tasks, followed by a faint one for planned tasks. */
function drawProgress(
  pen: Pen,
  colours: Colours,
  rect: Rect,
  { done, planned, size }: BoxCount,
  look: ShownState,
): void {
  const alpha = pen.alpha;
  const [x, width] = [rect.x + TEXT, rect.width - TEXT - 9];
  const line = { x, y: rect.y + rect.height - LINE_HEIGHT - 1.5, width, height: LINE_HEIGHT };
  const ink = look === "running" ? colours["accent-ink"] : colours.ink3;
  if (look === "running") pen.alpha = alpha * FAINT;
  pen.rounded(line, 1, { fill: look === "running" ? ink : look === "done" ? colours.line2 : colours.line });
  pen.alpha = alpha;
  const part = (share: number, fill: string) => {
    if (share > 0) pen.rounded({ ...line, width: width * share }, 1, { fill });
  };
  part((done + planned) / size, colours.line2);
  part(done / size, ink);
}

/** Return "7 of 43 tasks done"; during a search, the number of matches. */
export function cardText(facts: Facts, index: number): string {
  const { done, planned, size } = countOf(facts, index);
  const all = facts.scene.layout.boxes[index].box.size;
  if (facts.cardMatches) return `${grouped(facts.cardMatches[index])} of ${count(all, "task")} found`;
  if (size === 0) return `${count(all, "task")}, none runs`;
  if (planned === size) return `${count(size, "task")}, all planned`;
  if (planned) return `${grouped(done)} done, ${grouped(planned)} planned`;
  if (done === size) return `${count(size, "task")}, all done`;
  return done ? `${grouped(done)} of ${count(size, "task")} done` : count(all, "task");
}

