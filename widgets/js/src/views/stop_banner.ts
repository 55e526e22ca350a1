/**
 * Banner below the graph with the breakpoint or watchpoint that stopped a live session, until it continues or the
 * banner is dismissed.
 */

import { el } from "../dom.ts";
import type { MakeView } from "../view_types.ts";
import { icon } from "./icons.ts";
import { followLinks, withLinks } from "./task_links.ts";

/** Maximum number of lines about a watchpoint's finding. */
const MOST = 8;

export const makeStopped: MakeView = ({ store, root }, parent) => {
  const sign = el("span");
  const text = el("p");
  const lines = el("ol");
  const how = el("button", { class: "sm", title: "Show tasks from the value's origin to here" });
  const show = el("button", { class: "sm" }, "show");
  const dismiss = el("button", { class: "ib", title: "Dismiss", "aria-label": "dismiss" }, icon("close"));
  const banner = el("div", { class: "stopped", role: "group", "aria-label": "reason for the stop" });
  banner.append(sign, el("div", {}, how, show, dismiss), text, lines); // the text flows around the buttons
  banner.hidden = true;
  parent.append(banner);
  let shown = "";
  /** Number of lines visible while it is folded. */
  let least = 0;
  const unfold = (open: boolean) => {
    const items = [...lines.children] as HTMLElement[];
    items.forEach((item, index) => (item.hidden = !open && index >= least));
    lines.hidden = !open && !least;
    how.textContent = !least ? "origin" : open ? "less" : `${items.length - least} more`;
    how.ariaExpanded = String(open);
  };
  followLinks(banner, store);
  how.addEventListener("click", () => unfold(how.ariaExpanded === "false"));
  show.addEventListener("click", () => {
    store.show(0);
    store.update({ selected: store.state.stopped?.task ?? null });
  });
  dismiss.addEventListener("click", () => {
    banner.hidden = true;
    root.focus({ preventScroll: true });
  });
  return {
    update(changed) {
      if (!changed.has("stopped")) return;
      const { stopped, front } = store.state;
      root.dataset.stopped = stopped?.why ?? "";
      const key = stopped ? `${front} ${stopped.text}` : ""; // a repeated update must not reopen a dismissed banner
      if (key === shown) return;
      shown = key;
      banner.hidden = !key;
      if (!key || !stopped) return;
      banner.dataset.why = stopped.why;
      sign.replaceChildren(icon(stopped.why === "breakpoint" ? "octagon" : "warning"));
      text.replaceChildren(el("b", {}, "Stopped: "), ...withLinks(stopped.text, store));
      lines.replaceChildren(...stopped.lines.map((line) => el("li", {}, ...withLinks(line, store))));
      how.hidden = !stopped.lines.length;
      const { task, why, lines: { length } } = stopped;
      show.hidden = task === null;
      show.textContent = task === null ? "" : `show the ${store.replayOf(0).nth(task)}`;
      show.title = task === null ? "" : `Show ${store.graph.name(task)} in the graph`;
      const found = why === "watchpoint"; // the origin is what the user needs to know
      least = found && length > MOST ? MOST : 0;
      unfold(found && !least);
    },
    dispose: () => banner.remove(),
  };
};
