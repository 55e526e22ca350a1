/** The running task, why it was picked, and who is next, in the order in which they will pop. */

import { el } from "../dom.ts";
import type { Store } from "../store.ts";
import { size } from "../text.ts";
import type { MakeView, Stage } from "../view.ts";
import { waitingBytes } from "../model/waiting.ts";
import { glyph, icon } from "./icons.ts";
import { isSwift, paced } from "./paced.ts";
import { QueueRow, ROW_HEIGHT } from "./queue_row.ts";

/** So many rows are shown. */
const MOST = 60;
const SLIDE: KeyframeAnimationOptions = { duration: 160, easing: "cubic-bezier(.2,0,0,1)" };
/** Changes that come faster don't slide, milliseconds: the reader scrubs, or holds a key. */
const UNHURRIED = 100;

export const makeQueue: MakeView = (stage, parent) => {
  const { store } = stage;
  const sub = el("span", { class: "sub" });
  const now = el("button", { class: "now" });
  const why = el("div", { class: "why" }, icon("why", 14), el("span"));
  const keyed = el("span");
  const header = el("div", { class: "qh" }, el("span", {}, "next, in pop order"), el("span", {}, "waiting"), keyed);
  const list = el("ol", { class: "list", "aria-label": "ready tasks, in pop order" });
  const head = el("div", { class: "head" }, el("h3", {}, "Ready queue"), sub);
  const view = el("section", { class: "queue", "aria-label": "ready queue" }, head, now, why, header, list);
  parent.append(view);
  now.addEventListener("click", () => store.update({ selected: null }));

  const rows = new Map<number, QueueRow>();
  const devices = [...new Set(store.document.tasks.device)].map((device) => store.graph.text(device));
  const several = devices.length > 1;
  const end = el("li", { class: "empty" });
  let last = { t: -1, tab: -1, at: 0 };

  const showRunning = () => {
    const { replay, running } = store;
    const finished = running < 0;
    now.classList.toggle("fin", finished);
    now.classList.toggle("planned", store.isAhead && !finished);
    if (finished) {
      const total = replay.length.toLocaleString("en-US");
      now.replaceChildren(first(glyph("done"), "finished", ""), el("span", { class: "r2" }, `${total} tasks have run`));
    } else {
      const { graph } = store;
      const leaf = graph.leaf[running] === 1;
      const where = leaf ? graph.name(running) : graph.place(running);
      const planned = store.isAhead ? "planned · " : "";
      const second = el("span", { class: "r2" }, `${planned}${clip(where)} · ${size(graph.bufferBytes[running])} in`);
      now.replaceChildren(first(glyph("running"), clip(nameOf(store, running)), replay.key(running)), second);
    }
    (why.lastChild as HTMLElement).textContent = replay.reason(store.state.t);
  };

  const showList = () => {
    const { replay, state } = store;
    const queue = replay.queue(state.t, MOST);
    const more = Math.max(0, replay.queueLengths[state.t] - 1) - queue.length;
    const moves = animates(stage, last);
    const focused = [...rows.values()].find((row) => row.hasFocus);
    const leaving = moves ? rows.get(store.running) : undefined;
    const from = leaving && placeInView(leaving.element, view);
    const kept = new Set(queue);
    for (const [task, row] of rows) {
      if (kept.has(task)) continue;
      row.element.remove();
      rows.delete(task);
    }
    queue.forEach((task, index) => {
      let row = rows.get(task);
      const before = row?.index;
      if (!row) rows.set(task, (row = new QueueRow(store, task, several)));
      row.show(index, state.selected === task);
      if (list.children[index] !== row.element) list.insertBefore(row.element, list.children[index] ?? null);
      if (!moves || index * ROW_HEIGHT > list.scrollTop + list.clientHeight) return;
      if (before === undefined) row.element.animate({ opacity: [0, 1], transform: ["translateX(-6px)", "none"] }, SLIDE);
      else if (before !== index) slide(row.element, (before - index) * ROW_HEIGHT);
    });
    end.textContent = more ? `+${more.toLocaleString("en-US")} more` : store.running < 0 ? "empty" : "nothing else is ready";
    if (more || !queue.length) list.append(end);
    else end.remove();
    if (leaving && from) fly(leaving.element, from, now, view);
    if (focused && !focused.element.isConnected) refocus(rows.get(queue[0]), now);
    rove(rows, queue);
    last = { t: state.t, tab: state.tab, at: performance.now() };
  };

  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const item = (event.target as HTMLElement).closest("li");
    const next = step > 0 ? item?.nextElementSibling : item?.previousElementSibling;
    const button = next?.querySelector<HTMLElement>(".row");
    if (!button) return;
    list.querySelector<HTMLElement>('.row[tabindex="0"]')?.setAttribute("tabindex", "-1");
    button.tabIndex = 0;
    button.focus();
  });
  list.addEventListener("pointerover", (event) => hover(taskAt(event.target)));
  list.addEventListener("pointerleave", () => hover(null));
  const hover = (task: number | null) => store.update({ hoveredTask: task });
  list.addEventListener("click", (event) => {
    const task = taskAt(event.target);
    if (task === null) return;
    if ((event.target as HTMLElement).closest(".pop")) store.link?.stepTask(task);
    else store.select(task);
  });

  const slow = paced(stage, (changed) => {
    const moved = changed.has("t") || changed.has("tab") || changed.has("revision");
    if (!moved && !changed.has("selected") && !changed.has("status") && !changed.has("front")) return;
    const { state, replay } = store;
    const ready = Math.max(0, replay.queueLengths[state.t] - 1).toLocaleString("en-US");
    sub.textContent = `${ready} ready · ${size(waitingBytes(replay)[state.t])} waiting · ${devices.join(", ")}`;
    sub.title = sub.textContent;
    keyed.textContent = { created: "created", arrival: "arrived" }[String(replay.schedule.keys)] ?? "key";
    view.classList.toggle("steerable", canSteer(store));
    showRunning();
    showList();
  });
  return { ...slow, dispose: () => view.remove() };
};

/** Whether any ready task may be run next, by hand. */
function canSteer(store: Store): boolean {
  const { state, document } = store;
  return store.isLive && document.engine === "direct" && state.status === "stopped" && state.t === state.front;
}

function nameOf({ graph }: Store, task: number): string {
  return graph.leaf[task] ? graph.parameter(task) || "leaf" : graph.name(task);
}

/** Names are cut by the page; this only spares it the longest. */
function clip(text: string): string {
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}

function first(sign: SVGElement, name: string, key: string): HTMLElement {
  return el("span", { class: "r1" }, sign, el("span", { class: "n" }, name), el("span", { class: "k" }, key));
}

function taskAt(target: EventTarget | null): number | null {
  const task = (target as HTMLElement | null)?.closest<HTMLElement>("li")?.dataset.task;
  return task === undefined ? null : Number(task);
}

/** Things slide when one change comes after another at a pace that eyes can follow. */
function animates(stage: Stage, last: { t: number; tab: number; at: number }): boolean {
  const { state } = stage.store;
  if (stage.still || isSwift(stage) || last.tab !== state.tab || last.t === state.t) return false;
  return Math.abs(state.t - last.t) <= 3 && performance.now() - last.at > UNHURRIED;
}

function slide(element: HTMLElement, from: number): void {
  element.animate({ transform: [`translateY(${from}px)`, "none"] }, SLIDE);
}

interface Place {
  left: number;
  top: number;
  width: number;
}

/** Where an element is in another one, as far as it can be seen. */
function placeInView(element: HTMLElement, view: HTMLElement): Place {
  const inner = element.getBoundingClientRect();
  const outer = view.getBoundingClientRect();
  return { left: inner.left - outer.left, top: inner.top - outer.top, width: inner.width };
}

/** A copy of the row that was picked flies to the running task. */
function fly(element: HTMLElement, from: Place, target: HTMLElement, view: HTMLElement): void {
  const copy = el("div", { class: "flying", "aria-hidden": "true" });
  const shown = element.querySelector(".row")?.cloneNode(true) as HTMLElement;
  shown.tabIndex = -1;
  copy.append(shown);
  Object.assign(copy.style, { left: `${from.left}px`, top: `${from.top}px`, width: `${from.width}px` });
  view.append(copy);
  const rise = target.offsetTop - from.top;
  const moved = copy.animate({ transform: ["none", `translateY(${rise}px)`], opacity: [1, 0] }, SLIDE);
  moved.onfinish = moved.oncancel = () => copy.remove();
}

/** The focus stays in the list when the row that had it has gone. */
function refocus(row: QueueRow | undefined, otherwise: HTMLElement): void {
  if (row) row.focus();
  else otherwise.focus({ preventScroll: true });
}

/** One row of all is in the order of the tab key. */
function rove(rows: Map<number, QueueRow>, queue: readonly number[]): void {
  const focused = [...rows.values()].find((row) => row.hasFocus);
  const current = focused ?? rows.get(queue[0]);
  for (const row of rows.values()) row.tabbable = row === current;
}
