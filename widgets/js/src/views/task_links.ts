/** Sentences of Python's, in which "AddmmBackward0 (fc, 53rd, model.py:3)" leads to that task. */

import { el } from "../dom.ts";
import type { Replay } from "../model/replay.ts";
import type { Store } from "../store.ts";

/** A task as Graph.describe in inspector/graph/graph.py words it: its name, what stands before its place, the place. */
const TASK = /([^\s()]+)( \((?:[^()]*, )?)([\d,]+(?:st|nd|rd|th))(?=[,)])/g;

/** A click on `[data-go]` is for whoever shows them, see `goTo`. */
export function withLinks(text: string, store: Store): (Node | string)[] {
  const replay = store.replayOf(0);
  const found: (Node | string)[] = [];
  let from = 0;
  for (const match of text.matchAll(TASK)) {
    const [, name, between, place] = match;
    const task = taskAt(replay, name, place);
    if (task < 0) continue;
    const at = match.index + name.length + between.length;
    found.push(text.slice(from, at), el("button", { class: "go", "data-go": String(task), title: "Show that task" }, place));
    from = at + place.length;
  }
  return [...found, text.slice(from)];
}

/** The task of that name at `53rd`; -1 where another stands there: the words are not about this run. */
function taskAt(replay: Replay, name: string, place: string): number {
  const { graph } = replay;
  const task = replay.running(Number.parseInt(place.replaceAll(",", ""), 10) - 1);
  return task >= 0 && (graph.name(task) === name || graph.titles[task] === name) ? task : -1;
}

/** Selects the task of a link that was clicked. */
export function followLinks(element: HTMLElement, store: Store): void {
  element.addEventListener("click", ({ target }) => {
    const task = (target as HTMLElement).closest<HTMLElement>("[data-go]")?.dataset.go;
    if (task !== undefined) store.update({ selected: Number(task) });
  });
}
