/** The deck's keys in words, for the footer and the help. */

import { el } from "../dom.ts";

/** The keys, and what they do. */
export const KEYS: readonly (readonly [keys: string, does: string])[] = [
  ["Space", "play"],
  ["← →", "step"],
  ["⇧← ⇧→", "10 tasks"],
  ["Home End", "to the start, to the end"],
  ["1 2 3", "policy"],
  ["O ⇧O", "step over, out of a module"],
  ["B", "breakpoint"],
  ["R", "run to it"],
  ["S", "all stops"],
  ["[ ]", "fold, unfold"],
  ["F", "fit"],
  ["G", "follow"],
  ["M", "groups"],
  ["P", "to the peak"],
  ["Y", "scale"],
  ["/", "find"],
  ["T", "theme"],
  ["Esc", "search no more, deselect"],
  ["?", "all keys"],
];

/** The keys as they are drawn. */
export function caps(keys: string): HTMLElement[] {
  return keys.split(" ").map((key) => el("kbd", {}, key));
}
