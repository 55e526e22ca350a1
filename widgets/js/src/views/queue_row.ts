/** A ready task in the queue's list. */

import { el } from "../dom.ts";
import { replays } from "../model/recompute.ts";
import type { DeckGraph } from "../model/graph.ts";
import type { Store } from "../store.ts";
import { size } from "../format.ts";
import { icon } from "./icons.ts";
import { pathEnd } from "./text_elements.ts";

/** Row height as in the style sheet, pixels. */
export const ROW_HEIGHT = 24;

export class QueueRow {
  readonly element: HTMLLIElement;
  /** Index among the shown rows. */
  at = -1;
  private index = -1;
  private readonly place = el("span", { class: "p" });
  private readonly key = el("span", { class: "k" });
  private readonly mark = el("span", { class: "bp", title: "breakpoint" }, icon("octagon", 10));
  private readonly again = el("i", { class: "again" });
  private readonly button: HTMLButtonElement;

  constructor(
    private readonly store: Store,
    private readonly task: number,
  ) {
    const { graph } = store;
    const [title, where] = titled(graph, task);
    const name = named(title, where);
    name.append(this.again);
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

  show(index: number, at: number, selected: boolean): void {
    this.at = at;
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

/** Return the name of a task for a row. If space is short, the module's path is cut first, from its start. */
export function named(title: string, where: string): HTMLElement {
  return el("span", { class: "n" }, el("span", { class: "t" }, title.slice(0, 200)), pathEnd(where.slice(-200)));
}

/** Return the title and the location of a task in a row: `Transpose` in `blocks.3.attn`, `weight` in `blocks.3.fc`. */
export function titled(graph: DeckGraph, task: number): [title: string, where: string] {
  const parameter = graph.leaf[task] ? graph.parameter(task) : "";
  if (parameter) return [graph.titles[task], parameter.slice(0, Math.max(0, parameter.lastIndexOf(".")))];
  return [graph.titles[task], graph.module(task)];
}

/** Show the octagon if the task has a breakpoint. */
export function showMark(mark: HTMLElement, { state }: Store, task: number): void {
  const enabled = state.marks.get(task);
  mark.hidden = enabled === undefined;
  mark.classList.toggle("off", enabled === false);
}
