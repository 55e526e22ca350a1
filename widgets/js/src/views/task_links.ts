/** Sentences of Python's, in which "#12" leads to that task. */

import { el } from "../dom.ts";
import type { Store } from "../store.ts";

/** A click on `[data-go]` is for whoever shows them, see `goTo`. */
export function withLinks(text: string, { graph }: Store): (Node | string)[] {
  return text.split(/#(\d+)\b/).map((part, index) => {
    if (index % 2 === 0) return part;
    if (Number(part) >= graph.count) return `#${part}`;
    return el("button", { class: "go", "data-go": part, title: "Show that task" }, `#${part}`);
  });
}

/** Selects the task of a link that was clicked. */
export function followLinks(element: HTMLElement, store: Store): void {
  element.addEventListener("click", ({ target }) => {
    const task = (target as HTMLElement).closest<HTMLElement>("[data-go]")?.dataset.go;
    if (task !== undefined) store.update({ selected: Number(task) });
  });
}
