/** The block of the running task above the ready queue. */

import { el } from "../dom.ts";
import type { Store } from "../store.ts";
import { size } from "../text.ts";
import { glyph } from "./icons.ts";

/** The page cuts names to the width that there is; this only spares it the longest. */
const LONGEST = 300;

export function showRunning(block: HTMLElement, store: Store): void {
  const { replay, running, graph } = store;
  const finished = running < 0;
  block.classList.toggle("fin", finished);
  block.classList.toggle("planned", store.isAhead && !finished);
  if (finished) {
    const total = replay.length.toLocaleString("en-US");
    block.replaceChildren(first(glyph("done"), "finished", ""), second(`${total} tasks have run`, ""));
    return;
  }
  const leaf = graph.leaf[running] === 1;
  const name = leaf ? graph.parameter(running) || "leaf" : graph.name(running);
  const where = leaf ? graph.name(running) : graph.place(running);
  const planned = store.isAhead ? "planned · " : "";
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
