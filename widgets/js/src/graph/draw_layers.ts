/** Buttons of equal layers, in the order in which they run: numbers, cells if there are more, or one strip. */

import { STRIP_WIDTH } from "../../../../inspector/drawing/layout_constants.json";
import { countBelow } from "../binary_search.ts";
import { BUTTON, CELL, type Layers, MOST_BUTTONS, MOST_CELLS } from "../layout/layers.ts";
import type { PlacedBox, Rect } from "../layout/layout_types.ts";
import type { Colours } from "../view_types.ts";
import { LABEL, SMALLEST_TEXT } from "./draw_task.ts";
import type { Facts } from "./frame_state.ts";
import { grown } from "./spatial_index.ts";
import type { Course } from "./layer_choice.ts";
import type { Paint, Pen, Span } from "./pen.ts";

/** Distance from the top of a box to the middle of its header. */
const MIDDLE = 13;

export type LayerState = "waiting" | "begun" | "running" | "done";

/** Return the rectangle of a layer's button, or its part of the strip. The layers created last run first. */
export function layerRect({ box, rect, layersAt }: PlacedBox, layer: number): Rect {
  const count = box.layers?.count ?? 1;
  const place = count - 1 - layer;
  const left = rect.x + layersAt;
  if (count > MOST_CELLS) {
    const width = STRIP_WIDTH / count;
    return { x: left + place * width, y: rect.y + MIDDLE - CELL.height / 2, width, height: CELL.height };
  }
  const { width, pitch, height } = count > MOST_BUTTONS ? CELL : BUTTON;
  return { x: left + place * pitch, y: rect.y + MIDDLE - height / 2, width, height };
}

/** Return the layer whose button contains a point; -1 if there is none. */
export function layerAt(placed: PlacedBox, x: number, y: number): number {
  const { layers } = placed.box;
  if (!layers || placed.closed || !placed.layersAt) return -1;
  const [first, last] = [layerRect(placed, layers.count - 1), layerRect(placed, 0)];
  if (y < first.y - 2 || y > first.y + first.height + 2 || x < first.x || x >= last.x + last.width) return -1;
  const share = (x - first.x) / (last.x + last.width - first.x);
  return layers.count - 1 - Math.min(layers.count - 1, Math.floor(share * layers.count));
}

export function layerState({ first, last, layers, places }: Course, layer: number, t: number, running: number): LayerState {
  if (last[layer] < t) return "done";
  const at = countBelow(places, t);
  if (running >= 0 && first[layer] <= t && places[at] === t && layers[at] === layer) return "running";
  return first[layer] < t ? "begun" : "waiting";
}

export function drawLayers(pen: Pen, colours: Colours, facts: Facts, placed: PlacedBox, rect: Rect, scale: number): void {
  const { layers } = placed.box;
  const course = facts.courseOf(placed.box);
  if (!layers || !course || LABEL * scale < SMALLEST_TEXT) return;
  const at = { ...placed, rect };
  const running = facts.replay.running(facts.t);
  const state = (layer: number) => layerState(course, layer, facts.t, running);
  if (layers.count > MOST_CELLS) drawStrip(pen, colours, at, layers, state);
  else {
    for (let layer = 0; layer < layers.count; layer++) {
      const button = layerRect(at, layer);
      if (layers.count > MOST_BUTTONS) pen.rounded(button, 2, paintOf(colours, state(layer)));
      else drawButton(pen, colours, button, layers.numbers[layer], state(layer));
    }
  }
  const shown = layerRect(at, facts.scene.choice.get(placed.box.id) ?? layers.drawn);
  const isPinned = facts.layers.has(placed.box.id);
  const ring = layers.count > MOST_CELLS ? { ...shown, x: shown.x - 1, width: Math.max(3, shown.width + 2) } : shown;
  pen.rounded(grown(ring, 1.8), 4, { stroke: colours.ink, width: isPinned ? 2.2 : 1.2 });
}

function drawButton(pen: Pen, colours: Colours, rect: Rect, number: string, state: LayerState): void {
  pen.rounded(rect, 4, paintOf(colours, state));
  const sign = state === "done" ? "✓" : state === "running" ? "▶" : "";
  const fill = state === "done" ? colours["done-ink"] : state === "running" ? colours["accent-ink"] : colours.ink2;
  const text: Span = { text: `${sign}${number}`, fill, size: 10, weight: 500 };
  pen.text(rect.x + rect.width / 2, rect.y + rect.height / 2, [text], "middle");
}

function paintOf(colours: Colours, state: LayerState): Paint {
  if (state === "done") return { fill: colours["done-ink"] === colours.done ? colours.line2 : colours.done };
  if (state === "running") return { fill: colours.accent };
  return { fill: state === "begun" ? colours["accent-soft"] : colours.panel, stroke: colours.line2, width: 1 };
}

/** Draw the strip pixel by pixel, because single layers are too narrow. */
function drawStrip(pen: Pen, colours: Colours, placed: PlacedBox, layers: Layers, state: (layer: number) => LayerState): void {
  const whole = { ...layerRect(placed, layers.count - 1), width: STRIP_WIDTH };
  pen.rounded(whole, 2, { fill: colours.panel, stroke: colours.line2, width: 1 });
  const byState: Record<LayerState, Rect[]> = { waiting: [], begun: [], running: [], done: [] };
  for (let x = 0; x < STRIP_WIDTH; x++) {
    const layer = layers.count - 1 - Math.floor(((x + 0.5) / STRIP_WIDTH) * layers.count);
    byState[state(layer)].push({ x: whole.x + x, y: whole.y, width: 1, height: whole.height });
  }
  pen.rects(byState.done, 0, { fill: colours.ink3 });
  pen.rects(byState.begun, 0, { fill: colours["accent-soft"] });
  pen.rects(byState.running, 0, { fill: colours.accent });
}
