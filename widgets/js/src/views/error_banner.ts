/** Banner with the error of a live session, or else the document's note, shown until it is dismissed. */

import { el } from "../dom.ts";
import type { Status, Store } from "../store.ts";
import type { MakeView } from "../view_types.ts";
import { icon } from "./icons.ts";
import { count, grouped } from "../format.ts";

export const makeTrouble: MakeView = ({ store }, parent) => {
  const heading = el("b", {});
  const message = el("pre", { tabindex: "0" });
  const dismiss = el("button", { class: "ib", title: "Dismiss", "aria-label": "dismiss" }, icon("close"));
  const banner = el(
    "div",
    { class: "trouble" },
    icon("warning"),
    el("div", { class: "said" }, heading, message),
    dismiss,
  );
  banner.hidden = true;
  parent.append(banner);
  let dismissed = "";
  dismiss.addEventListener("click", () => {
    const { status, trouble } = store.state;
    dismissed = headline(status, trouble) + trouble;
    banner.hidden = true;
    (banner.closest(".deck") as HTMLElement | null)?.focus({ preventScroll: true });
  });
  return {
    update(changed) {
      if (!changed.has("status") && !changed.has("trouble")) return;
      const { status, trouble } = store.state;
      banner.dataset.status = status;
      const error = headline(status, trouble);
      const first = error || store.document.note || "";
      heading.textContent = first && status === "failed" ? `${first}${at(store)}.` : first;
      message.textContent = trouble || (error && after(store));
      if (!first) dismissed = "";
      banner.hidden = !first || first + trouble === dismissed;
    },
    dispose: () => banner.remove(),
  };
};

/** Return the headline; "" without an error. */
function headline(status: Status, trouble: string): string {
  if (status === "failed") return "The backward failed";
  if (status === "closed") return "The session is closed.";
  return trouble ? "The command failed." : "";
}

/** Return ` in AddmmBackward0, blocks.1.fc, model.py:12, the 3rd of 244 tasks` for the failed task. */
function at(store: Store): string {
  const { graph } = store;
  const replay = store.replayOf(0);
  const task = replay.running(store.state.front);
  if (task < 0) return "";
  const named = [graph.name(task), graph.place(task), graph.line(task)].filter(Boolean).join(", ");
  return ` in ${named}, the ${replay.nth(task)} of ${count(replay.length, "task")}`;
}

function after(store: Store): string {
  const [ran, all] = [store.state.front, store.replayOf(0).length].map(grouped);
  return `The ${ran} of ${all} tasks that have run can still be inspected.`;
}
