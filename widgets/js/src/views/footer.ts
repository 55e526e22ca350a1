/** The keys, below everything. */

import { el } from "../dom.ts";
import type { MakeView } from "../view.ts";
import { caps, KEYS } from "./keys.ts";
import { toggleHelp } from "./help.ts";

/** Those that fit; the help has all. */
const SHORT = new Set(["Home End", "Esc", "?", "O ⇧O", "S", "M"]);

/** Those that only wide decks have room for. */
const FAR = "10 tasks";

export const makeFooter: MakeView = (stage, parent) => {
  const hints = KEYS.filter(([keys]) => !SHORT.has(keys)).map(([keys, does]) =>
    el("span", { class: does === FAR ? "far" : "" }, ...caps(keys), ` ${does}`),
  );
  const all = el("button", { title: "All keys (?)" }, ...caps("?"), " all keys");
  all.addEventListener("click", () => toggleHelp(stage));
  const footer = el("div", { class: "foot" }, ...hints, all);
  parent.append(footer);
  return {
    update() {},
    dispose: () => footer.remove(),
  };
};
