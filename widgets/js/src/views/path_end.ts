/** A module's path, of which only the beginning may be cut: its end says which module it is. */

import { el } from "../dom.ts";

export function pathEnd(path: string, className = ""): HTMLElement {
  return el("i", { class: `end ${className}`.trim() }, el("bdi", { dir: "ltr" }, path));
}
