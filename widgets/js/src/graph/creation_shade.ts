/** Colours of tasks by the time of their creation: from nearly the panel's colour to blue, in a few steps. */

import { mixed } from "../canvas.ts";
import { createdAt } from "../model/creation.ts";
import type { ShownState } from "../model/replay.ts";
import type { Colours } from "../view_types.ts";
import type { Facts } from "./frame_state.ts";
import type { Paint, Span } from "./pen.ts";
import type { Scene } from "./scene.ts";

/** Few steps, because tasks of one colour share a path. */
const STEPS = 16;
const LIGHTEST = 0.08;
/** Share of blue in the darkest shade under text, on which it stays readable. */
const UNDER_TEXT = 0.45;

/** Return the step that a share of the forward belongs to; -1 if it is unknown or tasks are not coloured by creation. */
export function creationStep({ byCreation }: Pick<Facts, "byCreation">, share: number): number {
  return byCreation && share >= 0 ? Math.round(share * STEPS) / STEPS : -1;
}

/** Return the colour of a share of the forward, 0 to 1; the last one is `most` blue. */
export function creationShade(colours: Colours, share: number, most = UNDER_TEXT): string {
  return mixed(colours.saved, colours.panel, LIGHTEST + (most - LIGHTEST) * share);
}

/** Return a paint filled with the colour of a step, unless the step is -1 or the tasks run now. */
export function shaded(colours: Colours, step: number, paint: Paint, most?: number): Paint {
  return step < 0 || paint.fill === colours.accent ? paint : { ...paint, fill: creationShade(colours, step, most) };
}

/** Return a label in a colour that is readable on the colour of a step. */
export function inked(colours: Colours, spans: Span[], step: number, state: ShownState): Span[] {
  return step < 0 || state === "running" ? spans : spans.map((span) => ({ ...span, fill: colours.ink }));
}

const known = new WeakMap<Scene, { version: number; first: Float64Array; last: Float64Array }>();

/** Return the earliest and latest creation of the tasks in each closed box, as shares of the forward; -1 if unknown. */
export function creationOfCards(scene: Scene): { first: Float64Array; last: Float64Array } {
  let found = known.get(scene);
  if (found?.version === scene.version) return found;
  const [first, last] = [0, 1].map(() => new Float64Array(scene.layout.boxes.length).fill(-1));
  scene.cardOf.forEach((card, task) => {
    const share = card < 0 || !scene.shows(task) ? -1 : createdAt(scene.graph, task);
    if (share < 0) return;
    first[card] = first[card] < 0 ? share : Math.min(first[card], share);
    last[card] = Math.max(last[card], share);
  });
  known.set(scene, (found = { version: scene.version, first, last }));
  return found;
}
