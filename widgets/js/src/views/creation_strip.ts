/**
 * The strip of creation times: a tick for each task over the forward. It is a slider that selects tasks in their order
 * of creation.
 */

import { countBelow, countUpTo } from "../binary_search.ts";
import { fit, smallType } from "../canvas.ts";
import { el } from "../dom.ts";
import { creationShade, creationStep } from "../graph/creation_shade.ts";
import { type Creation, createdWords, creationOf, nearestTo } from "../model/creation.ts";
import { whatAndWhere } from "../model/replay.ts";
import { hasMoved } from "../store.ts";
import { count, nanoseconds } from "../format.ts";
import type { Stage, View } from "../view_types.ts";

const HEIGHT = 34;
/** Lower end of the ticks. */
const BASE = 20;
/** Space at both ends of the axis. */
const MARGIN = 2;
/** Looks of ticks, the least important first, and their heights. */
const LOOKS = { waiting: 1, done: 2, ready: 3, running: 4 };
const SELECTED = 5;
const HEIGHTS = [0, 6, 9, 13, 16, 20];
/** Share of the tasks that PageUp and PageDown pass. */
const PAGE = 0.1;

/** Build the strip; it is hidden if the times are unknown. `redraw` requests a draw. */
export function makeCreationStrip(stage: Stage, redraw: () => void): View & { element: HTMLElement } {
  const { store } = stage;
  const creation = creationOf(store.graph);
  const canvas = el("canvas", { role: "slider", tabindex: "0", "aria-label": "creation times", "aria-valuemin": "1" });
  const element = el("div", { class: "created" }, canvas);
  element.hidden = !creation;
  if (!creation) return { element, update: () => false, dispose() {} };
  const resize = new ResizeObserver(redraw);
  resize.observe(element);
  bindStrip(stage, canvas, creation);
  canvas.setAttribute("aria-valuemax", String(creation.tasks.length));
  return {
    element,
    update(changed) {
      const shows = hasMoved(changed) || changed.has("selected");
      if (shows) {
        const { shown } = store;
        canvas.setAttribute("aria-valuenow", String(Math.max(0, creation.index[shown] ?? 0) + 1));
        canvas.setAttribute("aria-valuetext", shown < 0 ? "" : wordsOf(stage, shown));
      }
      return shows || changed.has("hoveredTask") || changed.has("byCreation");
    },
    draw() {
      const width = element.clientWidth;
      if (width) drawStrip(fit(canvas, width, HEIGHT), stage, creation, width);
      return false;
    },
    dispose: () => resize.disconnect(),
  };
}

function wordsOf({ store: { graph } }: Stage, task: number): string {
  return `${whatAndWhere(graph, task)}\n${createdWords(graph, task)}`;
}

function bindStrip(stage: Stage, canvas: HTMLElement, creation: Creation): void {
  const { store } = stage;
  const { tasks, times, index, end } = creation;
  const pointed = ({ offsetX }: MouseEvent) =>
    tasks[nearestTo(creation, ((offsetX - MARGIN) / (canvas.clientWidth - 2 * MARGIN)) * end)];
  canvas.addEventListener("pointermove", (event) => {
    const task = pointed(event);
    const time = times[index[task]];
    const others = countUpTo(times, time) - countBelow(times, time) - 1;
    const said = others ? `\nat the same time as ${count(others, "other task")}` : "";
    const frame = canvas.closest<HTMLElement>(".frame")!; // in the strip itself, a tip would hide the ticks
    const { left, top } = frame.getBoundingClientRect();
    store.update({ hoveredTask: task });
    stage.tip(wordsOf(stage, task) + said, frame, event.clientX - left, event.clientY - top);
  });
  canvas.addEventListener("pointerleave", () => {
    store.update({ hoveredTask: null });
    stage.tip(null);
  });
  canvas.addEventListener("click", (event) => {
    const task = pointed(event);
    // Clicking again selects the next task of those with the same time.
    const next = tasks[(index[store.state.selected ?? -1] ?? NaN) + 1];
    store.update({ selected: times[index[next]] === times[index[task]] && next > task ? next : task });
  });
  canvas.addEventListener("keydown", (event) => {
    const page = Math.ceil(tasks.length * PAGE);
    const moves: Record<string, number> = {
      ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -page, PageUp: page, Home: -Infinity, End: Infinity,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    event.stopPropagation(); // these keys step the deck elsewhere
    const to = (index[store.shown] ?? 0) + moves[event.key];
    store.update({ selected: tasks[Math.max(0, Math.min(tasks.length - 1, to))] });
  });
}

function drawStrip(context: CanvasRenderingContext2D, { store, colours }: Stage, creation: Creation, width: number): void {
  const { tasks, times, index, end } = creation;
  const { replay, state: { t, selected, hoveredTask, byCreation } } = store;
  const across = width - 2 * MARGIN;
  const halfAt = (at: number) => Math.round((2 * across * times[at]) / end);
  // Ticks in the same half of a pixel are one line, which shows the most important state.
  const looks = new Uint8Array(2 * across + 1);
  for (let at = 0; at < tasks.length; at++) {
    const half = halfAt(at);
    looks[half] = Math.max(looks[half], LOOKS[replay.state(tasks[at], t)]);
  }
  for (const task of [selected, hoveredTask]) if (index[task ?? -1] >= 0) looks[halfAt(index[task!])] = SELECTED;
  const inks = ["", colours.line2, colours["done-ink"], colours.accent, colours.accent, colours.ink];
  context.fillStyle = colours.line;
  context.fillRect(MARGIN, BASE, across, 1);
  for (let look = 1; look <= SELECTED; look++) {
    const [height, wide] = [HEIGHTS[look], look < LOOKS.running ? 1 : 2];
    for (let half = 0; half < looks.length; half++) {
      if (looks[half] !== look) continue;
      const shade = look < LOOKS.ready ? creationStep({ byCreation }, half / 2 / across) : -1;
      context.fillStyle = shade < 0 ? inks[look] : creationShade(colours, shade, 1);
      context.fillRect(MARGIN + (half - wide) / 2, BASE - height, wide, height);
    }
  }
  context.font = smallType(400);
  context.fillStyle = colours.ink3;
  context.textAlign = "left";
  context.fillText("first node", MARGIN, BASE + 8);
  context.textAlign = "right";
  context.fillText(`last node ${nanoseconds(end)}`, width - MARGIN, BASE + 8);
}
