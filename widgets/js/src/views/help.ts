/** The list of all keys, over the deck. */

import { el } from "../dom.ts";
import type { Stage } from "../view_types.ts";
import { icon } from "./icons.ts";

/** Keys and their descriptions, in groups. */
const KEYS: Record<string, Record<string, string>> = {
  Run: {
    "Space": "play",
    "← →": "step",
    "⇧← ⇧→": "10 tasks",
    "Home End": "to the start, to the end",
    "O ⇧O": "step over, out of a module",
    "R": "run to the next breakpoint",
    "1 2 … 9": "policy of this tab",
  },
  Look: {
    "/": "find a task",
    "P": "to the memory peak",
    "[ ]": "fold, unfold",
    "⇧[ ⇧]": "fold all, unfold all",
    "F": "fit the graph",
    "G": "follow the running task",
    "M": "groups",
    "N": "colour by creation time",
  },
  Stops: {
    "B": "breakpoint",
    "S": "list of breakpoints",
  },
  View: {
    "Y": "scale of the memory chart",
    "C": "timeline by tasks, by the clock",
    "+ − 0": "zoom the timeline, show all",
    "W": "full window, Esc leaves",
    "T": "theme",
    "Esc": "leave the search, deselect, leave the deck",
    "Alt+Shift+D": "from a notebook to its deck",
    "?": "all keys",
  },
};

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
  const row = ([keys, does]: [string, string]) => el("div", {}, el("dt", {}, ...caps(keys)), el("dd", {}, does));
  const groups = Object.entries(KEYS).map(([name, keys]) =>
    el("section", {}, el("h4", {}, name), el("dl", {}, ...Object.entries(keys).map(row))),
  );
  const shut = el("button", { class: "ib", "aria-label": "close", title: "Close (Esc)" }, icon("close"));
  const heading = el("h3", {}, "Keys", shut);
  const help = el("div", { class: "help", role: "dialog", "aria-label": "keys" }, heading, ...groups);
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
