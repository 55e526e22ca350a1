/** The line below the bar: how far the backward is, its peak and the breakpoints; also a slider. */

import { hasRun } from "../charts/axis.ts";
import { fit } from "../charts/surface.ts";
import { el } from "../dom.ts";
import { levelsOfMemory } from "../model/memory.ts";
import { NEVER, whatAndWhere } from "../model/replay.ts";
import { when } from "../model/when.ts";
import { hasMoved, type Store } from "../store.ts";
import type { Colours, MakeView } from "../view.ts";

const HEIGHT = 12;
/** Half the width of the slider's thumb, within which a browser keeps it (deck.css has the same). */
const INSET = 8;
const MIDDLE = 6.5;
const TRACK = 3;
/** Breakpoints nearer than that are drawn as one that goes on, pixels. */
const CLOSE = 9;

export const makeScrub: MakeView = (stage, parent) => {
  const { store } = stage;
  const canvas = el("canvas", { "aria-hidden": "true" });
  const slider = el("input", { type: "range", min: "0", step: "1", "aria-label": "position in the backward" });
  const view = el("div", { class: "scrub" }, slider, canvas);
  parent.append(view);
  slider.addEventListener("input", () => {
    store.update({ playing: false });
    store.go(Number(slider.value));
  });
  return {
    update(changed) {
      if (!hasMoved(changed)) return changed.has("marks");
      if (changed.has("tab") || changed.has("revision")) slider.max = String(store.replay.length);
      slider.value = String(store.state.t);
      slider.setAttribute("aria-valuetext", positionWords(store));
      return true;
    },
    draw() {
      const width = view.clientWidth;
      if (width) drawLine(fit(canvas, width, HEIGHT), store, stage.colours, width);
      return false;
    },
    dispose: () => view.remove(),
  };
};

/** `runs 58th of 144, TBackward0, blocks.1.f2`. */
function positionWords(store: Store): string {
  const { running, graph, replay } = store;
  if (running < 0) return `${store.unreal ? `${store.unreal}, ` : ""}the end, after ${replay.length} tasks`;
  const stands = when(replay, running, store.state.t, store.ran, store.unreal).join("");
  return `${stands}, ${whatAndWhere(graph, running)}`;
}

function drawLine(context: CanvasRenderingContext2D, store: Store, colours: Colours, width: number): void {
  const { length } = store.replay;
  const x = (position: number) => INSET + ((width - 2 * INSET) * position) / Math.max(length, 1);
  const { t } = store.state;
  const ran = x(Math.min(hasRun(store), length));
  const now = x(Math.min(t, length));
  bar(context, 0, width, colours.line);
  bar(context, 0, ran, colours.accent);
  if (now > ran) hollow(context, ran, now, colours);
  if (store.memory) {
    const { peak } = levelsOfMemory(store.memory);
    context.fillStyle = colours.ink2;
    context.fillRect(x(Math.max(0, Math.min(peak.place, length))) - 0.75, 2.5, 1.5, 8);
  }
  drawBreakpoints(context, store, colours, x);
  disc(context, now, 6, colours.panel);
  disc(context, now, 4.5, colours.accent);
  if (now > ran) disc(context, now, 2.7, colours.panel);
}

function bar(context: CanvasRenderingContext2D, from: number, to: number, colour: string): void {
  context.fillStyle = colour;
  context.beginPath();
  context.roundRect(from, MIDDLE - TRACK / 2, to - from, TRACK, TRACK / 2);
  context.fill();
}

/** The way to a position that a live session has not reached. */
function hollow(context: CanvasRenderingContext2D, from: number, to: number, colours: Colours): void {
  bar(context, from, to, colours["accent-soft"]);
  context.strokeStyle = colours.accent;
  context.lineWidth = 1;
  context.beginPath();
  context.roundRect(from, MIDDLE - TRACK / 2, to - from, TRACK, TRACK / 2);
  context.stroke();
}

/** Where they are close together the first of them is drawn, and how far they go on. */
function drawBreakpoints(
  context: CanvasRenderingContext2D,
  { state, replay }: Store,
  colours: Colours,
  x: (position: number) => number,
): void {
  const pixels = new Map<number, boolean>();
  for (const [task, enabled] of state.marks) {
    if (replay.place[task] === NEVER) continue;
    const at = Math.round(2 * x(replay.place[task])) / 2;
    pixels.set(at, enabled || pixels.get(at) === true);
  }
  const runs: { from: number; to: number; enabled: boolean }[] = [];
  for (const [at, enabled] of [...pixels].sort(([one], [other]) => one - other)) {
    const last = runs.at(-1);
    if (last && at - last.to < CLOSE && enabled === last.enabled) last.to = at;
    else runs.push({ from: at, to: at, enabled });
  }
  for (const { from, to, enabled } of runs) {
    if (to > from) bar(context, from, to, colours.ink);
    context.fillStyle = colours.ink;
    octagon(context, from, 4);
    context.fillStyle = colours.panel;
    if (!enabled) octagon(context, from, 2.4);
  }
}

function octagon(context: CanvasRenderingContext2D, x: number, radius: number): void {
  context.beginPath();
  for (let corner = 0; corner < 8; corner++) {
    const angle = Math.PI / 8 + (corner * Math.PI) / 4;
    context.lineTo(x + radius * Math.cos(angle), MIDDLE + radius * Math.sin(angle));
  }
  context.fill();
}

function disc(context: CanvasRenderingContext2D, x: number, radius: number, colour: string): void {
  context.fillStyle = colour;
  context.beginPath();
  context.arc(x, MIDDLE, radius, 0, 2 * Math.PI);
  context.fill();
}
