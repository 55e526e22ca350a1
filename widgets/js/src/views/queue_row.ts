/** One ready task in the queue's list. */

import { el } from "../dom.ts";
import { replays } from "../model/mirroring.ts";
import type { Store } from "../store.ts";
import { size } from "../text.ts";
import { icon } from "./icons.ts";

/** As in the style sheet, pixels. */
export const ROW_HEIGHT = 28;

export class QueueRow {
  readonly element: HTMLLIElement;
  index = -1;
  private readonly place = el("span", { class: "p" });
  private readonly key = el("span", { class: "k" });
  private readonly mark = el("span", { class: "bp", title: "breakpoint" }, icon("octagon", 10));
  private readonly again = el("i", { class: "again" });
  private readonly button: HTMLButtonElement;

  constructor(
    private readonly store: Store,
    private readonly task: number,
    withDevice: boolean,
  ) {
    const { graph, document } = store;
    const leaf = graph.leaf[task] === 1;
    const places = [leaf ? graph.name(task) : graph.place(task)];
    if (withDevice) places.push(graph.text(document.tasks.device[task]));
    const title = leaf ? graph.parameter(task) || "leaf" : graph.titles[task];
    const where = places.filter(Boolean).join(" · ");
    const name = el("span", { class: "n" }, title.slice(0, 200), el("i", {}, where.slice(0, 200)), this.again);
    const bytes = el("span", { class: "b" }, size(graph.bufferBytes[task]));
    this.button = el(
      "button",
      { class: "row", title: `${title}\n${where}`.slice(0, 600) },
      this.mark,
      this.place,
      name,
      bytes,
      this.key,
    );
    const pop = el("button", { class: "sm pop", tabindex: "-1", title: "Run this task next" }, "run next");
    this.element = el("li", { "data-task": String(task) }, this.button, pop);
  }

  show(index: number, selected: boolean): void {
    const key = this.store.replay.nth(this.task);
    if (this.key.textContent !== key) this.key.textContent = key;
    if (this.index !== index) this.place.textContent = String(index + 1);
    this.index = index;
    const again = replays(this.store.replay, this.task);
    if (this.again.textContent !== again) this.again.textContent = again;
    showMark(this.mark, this.store, this.task);
    this.button.setAttribute("aria-pressed", String(selected));
  }

  get hasFocus(): boolean {
    return this.element.matches(":focus-within");
  }

  set tabbable(yes: boolean) {
    this.button.tabIndex = yes ? 0 : -1;
    for (const other of this.element.querySelectorAll<HTMLElement>(".pop")) other.tabIndex = yes ? 0 : -1;
  }

  focus(): void {
    this.button.focus({ preventScroll: true });
  }
}

/** Shows the octagon of a task that has a breakpoint. */
export function showMark(mark: HTMLElement, { state }: Store, task: number): void {
  const enabled = state.marks.get(task);
  mark.hidden = enabled === undefined;
  mark.classList.toggle("off", enabled === false);
}
