/** The deck's keys in words, for the help. */

import { el } from "../dom.ts";

/** The keys, and what they do. */
export const KEYS: readonly (readonly [keys: string, does: string])[] = [
  ["Space", "play"],
  ["← →", "step"],
  ["⇧← ⇧→", "10 tasks"],
  ["Home End", "to the start, to the end"],
  ["1 2 … 9", "policy, by its tab"],
  ["O ⇧O", "step over, out of a module"],
  ["B", "breakpoint"],
  ["R", "run to it"],
  ["S", "all stops"],
  ["[ ]", "fold, unfold"],
  ["⇧[ ⇧]", "fold all, unfold all"],
  ["F", "fit"],
  ["G", "follow"],
  ["M", "groups"],
  ["P", "to the peak"],
  ["Y", "scale of memory"],
  ["C", "axis: tasks, clock"],
  ["+ − 0", "zoom the timeline, show all"],
  ["W", "full window, Esc leaves"],
  ["/", "find"],
  ["T", "theme"],
  ["Esc", "search no more, deselect"],
  ["?", "all keys"],
];

/** The keys as they are drawn. */
export function caps(keys: string): HTMLElement[] {
  return keys.split(" ").map((key) => el("kbd", {}, key));
}
