/** The block of the running task above the ready queue. */

import { el } from "../dom.ts";
import { replays } from "../model/recompute.ts";
import type { Store } from "../store.ts";
import { count, size } from "../format.ts";
import { glyph } from "./icons.ts";
import { pathEnd } from "./text_elements.ts";
import { titled } from "./queue_row.ts";

/** Maximum length of a name; the page cuts names to the available width anyway. */
const LONGEST = 300;

/** Show the running task; -1 for the end. */
export function showRunning(block: HTMLElement, store: Store, running: number): void {
  const { replay, graph } = store;
  const { unreal } = store;
  block.classList.toggle("fin", running < 0 && !unreal);
  block.classList.toggle("failed", unreal === "failed");
  block.classList.toggle("planned", unreal === "planned" || unreal === "simulated");
  if (running < 0) {
    const said = unreal ? `${unreal} · the end` : "finished";
    const { isSimulated, ran } = store;
    const sum = isSimulated ? "none of it has run" : `${count(ran, "task")} ${ran === 1 ? "has" : "have"} run`;
    block.replaceChildren(first(glyph(unreal ? "waiting" : "done"), said, ""), second(sum, ""));
    return;
  }
  const [title, where] = titled(graph, running);
  const name = graph.leaf[running] ? `AccumulateGrad ${title}` : title;
  const standing = [unreal, replays(replay, running), where].filter(Boolean).join(" · ");
  block.replaceChildren(
    first(glyph(unreal === "failed" ? unreal : "running"), name, replay.nth(running)),
    second(standing === where ? pathEnd(where.slice(-LONGEST), "n") : standing, `${standing && " · "}${size(graph.bufferBytes[running])} in`),
  );
}

function first(sign: SVGElement, name: string, key: string): HTMLElement {
  return el("span", { class: "r1" }, sign, named(name), el("span", { class: "k" }, key));
}

function second(where: string | HTMLElement, bytes: string): HTMLElement {
  return el("span", { class: "r2" }, typeof where === "string" ? named(where) : where, el("span", { class: "b" }, bytes));
}

function named(text: string): HTMLElement {
  return el("span", { class: "n" }, text.slice(0, LONGEST));
}
