/** Sentences from Python, in which "AddmmBackward0 (fc, 53rd, model.py:3)" becomes a link to the task. */

import { el } from "../dom.ts";
import type { Replay } from "../model/replay.ts";
import type { Store } from "../store.ts";

/**
 * A task as described by Graph.describe in inspector/graph/graph.py: its name, the text before its place, and the
 * place.
 */
const TASK = /([^\s()]+)( \((?:[^()]*, )?)([\d,]+(?:st|nd|rd|th))(?=[,)])/g;

/** Return the text with links. Clicks on `[data-go]` are handled by the caller, see `followLinks`. */
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

/**
 * Return the task with this name at `53rd`; -1 if another task is there, because the text then describes another run.
 */
function taskAt(replay: Replay, name: string, place: string): number {
  const { graph } = replay;
  const task = replay.running(Number.parseInt(place.replaceAll(",", ""), 10) - 1);
  return task >= 0 && (graph.name(task) === name || graph.titles[task] === name) ? task : -1;
}

/** Select the task of a clicked link. */
export function followLinks(element: HTMLElement, store: Store): void {
  element.addEventListener("click", ({ target }) => {
    const task = (target as HTMLElement).closest<HTMLElement>("[data-go]")?.dataset.go;
    if (task !== undefined) store.update({ selected: Number(task) });
  });
}
