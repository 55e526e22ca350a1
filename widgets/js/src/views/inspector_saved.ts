/** Saved tensors of a task. */

import { el } from "../dom.ts";
import { NONE } from "../model/document.ts";
import { fate, isFreed, keptBytes, type Saved, savedBy } from "../model/saved_tensors.ts";
import type { Store } from "../store.ts";
import { grouped, shape, size } from "../format.ts";

/** Maximum number of listed tensors. */
const MOST = 40;

export function savedSection(store: Store, task: number): HTMLElement[] {
  const all = savedBy(store.replay, task);
  if (!all.length) return [];
  const items = all.slice(0, MOST).map((each) => item(store, each));
  if (all.length > MOST)
    items.push(el("div", { class: "empty" }, `+${grouped(all.length - MOST)} more`));
  const gone = all.filter((each) => each.madeBy && !each.sameAs).reduce((sum, each) => sum + each.bytes, 0);
  const said = gone ? `${size(gone)} dropped` : `${size(keptBytes(all))} saved`;
  const heading = el("h4", {}, "Saved tensors", el("span", {}, said));
  return [el("div", { class: "sec", "data-part": "saved-tensors" }, heading, ...items)];
}

function item(store: Store, saved: Saved): HTMLElement {
  const { replay, ran, document } = store;
  const meta = saved.meta === NONE ? undefined : document.metas[saved.meta];
  const uncounted = saved.parameter !== "" || saved.held;
  const isGone = saved.madeBy && saved.first >= ran;
  const swatch = uncounted ? "sw uncounted" : isGone || isFreed(replay, saved, ran) ? "sw freed" : "sw";
  const words = el("span", { class: "d" }, fate(replay, saved, ran));
  if (saved.others.length && !uncounted && !saved.sameAs) {
    words.append(
      " ",
      el("button", { class: "go", "data-go": String(saved.others[0]), title: "Show that task" }, "show"),
    );
  }
  const what =
    meta && el("i", { title: `${shape(meta.shape)} ${meta.dtype} on ${meta.device}` }, shape(meta.shape));
  return el(
    "div",
    { class: "sv" },
    el("span", { class: swatch, "aria-hidden": "true" }),
    el("span", { class: "t" }, saved.slot, ...(what ? [" ", what] : [])),
    el("span", {}, saved.sameAs ? "" : size(saved.bytes)),
    words,
  );
}
