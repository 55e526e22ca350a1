/** The list of all keys, over the deck. */

import { el } from "../dom.ts";
import type { Stage } from "../view_types.ts";
import { icon } from "./icons.ts";

/** Keys and their descriptions. */
const KEYS: readonly (readonly [keys: string, does: string])[] = [
  ["Space", "play"],
  ["← →", "step"],
  ["⇧← ⇧→", "10 tasks"],
  ["Home End", "to the start, to the end"],
  ["1 2 … 9", "policy of this tab"],
  ["O ⇧O", "step over, out of a module"],
  ["B", "breakpoint"],
  ["R", "run to the next breakpoint"],
  ["S", "list of breakpoints"],
  ["[ ]", "fold, unfold"],
  ["⇧[ ⇧]", "fold all, unfold all"],
  ["F", "fit"],
  ["G", "follow"],
  ["M", "groups"],
  ["N", "colour by creation time"],
  ["P", "to the memory peak"],
  ["Y", "memory scale"],
  ["C", "axis: tasks, clock"],
  ["+ − 0", "zoom the timeline, show all"],
  ["W", "full window, Esc leaves"],
  ["/", "find"],
  ["T", "theme"],
  ["Esc", "leave the search, deselect"],
  ["?", "all keys"],
];

/** Return the keys as drawn key caps. */
function caps(keys: string): HTMLElement[] {
  return keys.split(" ").map((key) => el("kbd", {}, key));
}

/** Open or close the help; the focus moves into it and returns afterwards. */
export function toggleHelp({ root }: Stage): void {
  const open = root.querySelector<HTMLElement>(".help");
  if (open) {
    open.remove();
    return;
  }
  const tree = root.getRootNode() as ShadowRoot | Document;
  const before = tree.activeElement as HTMLElement | null;
  const rows = KEYS.map(([keys, does]) => el("div", {}, el("dt", {}, ...caps(keys)), el("dd", {}, does)));
  const shut = el("button", { class: "ib", "aria-label": "close", title: "Close (Esc)" }, icon("close"));
  const heading = el("h3", {}, "Keys", shut);
  const help = el("div", { class: "help", role: "dialog", "aria-label": "keys" }, heading, el("dl", {}, ...rows));
  const close = () => {
    help.remove();
    (before?.isConnected ? before : root).focus({ preventScroll: true });
  };
  shut.addEventListener("click", close);
  help.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" && event.key !== "?") return;
    event.preventDefault();
    event.stopPropagation();
    close();
  });
  const opener = root.querySelector(".bar .keys"); // its own click also closes the help
  help.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget && relatedTarget !== opener && !help.contains(relatedTarget as Node)) help.remove();
  });
  root.querySelector(".frame")?.append(help);
  shut.focus({ preventScroll: true });
}
