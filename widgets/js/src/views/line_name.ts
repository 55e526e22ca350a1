/** `model.py:120`, of which only the file may be cut: the number stays. */

import { el } from "../dom.ts";

export function lineName(short: string, title = ""): HTMLElement {
  const colon = short.lastIndexOf(":");
  if (colon < 0) return el("span", { class: "line" }, el("span", {}, short));
  return el("span", { class: "line", title }, el("span", {}, short.slice(0, colon)), short.slice(colon));
}
