/** The block of the running task above the ready queue. */

import { el } from "../dom.ts";
import type { Store } from "../store.ts";
import { count, size } from "../text.ts";
import { glyph } from "./icons.ts";

/** The page cuts names to the width that there is; this only spares it the longest. */
const LONGEST = 300;

export function showRunning(block: HTMLElement, store: Store): void {
  const { replay, running, graph } = store;
  const { isAhead } = store;
  block.classList.toggle("fin", running < 0 && !isAhead);
  block.classList.toggle("planned", isAhead);
  if (running < 0) {
    const said = isAhead ? "planned · the end" : "finished";
    const ran = `${count(store.ran, "task")} ${store.ran === 1 ? "has" : "have"} run`;
    block.replaceChildren(first(glyph(isAhead ? "waiting" : "done"), said, ""), second(ran, ""));
    return;
  }
  const leaf = graph.leaf[running] === 1;
  const name = leaf ? graph.parameter(running) || "leaf" : graph.name(running);
  const where = leaf ? graph.name(running) : graph.place(running);
  const planned = isAhead ? "planned · " : "";
  block.replaceChildren(
    first(glyph("running"), name, replay.key(running)),
    second(planned + where, ` · ${size(graph.bufferBytes[running])} in`),
  );
}

function first(sign: SVGElement, name: string, key: string): HTMLElement {
  return el("span", { class: "r1" }, sign, named(name), el("span", { class: "k" }, key));
}

function second(where: string, bytes: string): HTMLElement {
  return el("span", { class: "r2" }, named(where), el("span", { class: "b" }, bytes));
}

function named(text: string): HTMLElement {
  return el("span", { class: "n" }, text.slice(0, LONGEST));
}
