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
/** Heights of ticks, the least important state first. */
const HEIGHTS = { waiting: 9, done: 9, ready: 14, running: 18, selected: 18 };
type Look = keyof typeof HEIGHTS;
const LOOKS = Object.keys(HEIGHTS) as Look[];
/** Share of the tasks that PageUp and PageDown pass. */
const PAGE = 0.1;

/** Build the strip; it is hidden if the times are unknown. `redraw` requests a draw. */
export function makeCreationStrip(stage: Stage, redraw: () => void): View & { element: HTMLElement } {
  const { store } = stage;
  const creation = creationOf(store.graph);
  const canvas = el("canvas", { role: "slider", tabindex: "0", "aria-label": "creation times of the tasks", "aria-valuemin": "1" });
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
  canvas.addEventListener("click", (event) => store.update({ selected: pointed(event) }));
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

function drawStrip(context: CanvasRenderingContext2D, { store, colours }: Stage, { tasks, times, end }: Creation, width: number): void {
  const { replay, state: { t, selected, hoveredTask, byCreation } } = store;
  const across = width - 2 * MARGIN;
  // Ticks of one look in the same half of a pixel are one line. More important looks are drawn over others.
  const lines: Record<Look, Set<number>> = { waiting: new Set(), done: new Set(), ready: new Set(), running: new Set(), selected: new Set() };
  tasks.forEach((task, at) => {
    const look = task === selected || task === hoveredTask ? "selected" : replay.state(task, t);
    lines[look].add(Math.round((2 * across * times[at]) / end) / 2);
  });
  const inks = { waiting: colours.line2, done: colours["done-ink"], ready: colours.accent, running: colours.accent, selected: colours.ink };
  context.fillStyle = colours.line;
  context.fillRect(MARGIN, BASE, across, 1);
  for (const look of LOOKS) {
    const height = HEIGHTS[look];
    const wide = height > HEIGHTS.ready ? 2 : 1;
    for (const x of lines[look]) {
      const shade = height === HEIGHTS.waiting ? creationStep({ byCreation }, x / across) : -1;
      context.fillStyle = shade < 0 ? inks[look] : creationShade(colours, shade, 1);
      context.fillRect(MARGIN + x - wide / 2, BASE - height, wide, height);
    }
  }
  context.font = smallType(400);
  context.fillStyle = colours.ink3;
  context.textAlign = "left";
  context.fillText("first operation", MARGIN, BASE + 8);
  context.textAlign = "right";
  context.fillText(`last node ${nanoseconds(end)}`, width - MARGIN, BASE + 8);
}
