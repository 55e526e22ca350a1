/** All keys, over the deck. */

import { el } from "../dom.ts";
import type { Stage } from "../view.ts";
import { icon } from "./icons.ts";
import { caps, KEYS } from "./keys.ts";

/** Opens the help, or closes it; the focus goes in and comes back. */
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
  const opener = root.querySelector(".bar .keys"); // closes it, too, by its own click
  help.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget && relatedTarget !== opener && !help.contains(relatedTarget as Node)) help.remove();
  });
  root.querySelector(".frame")?.append(help);
  shut.focus({ preventScroll: true });
}
