/** The running task, why it was picked, and who is next, in the order in which they will run. */

import { el } from "../dom.ts";
import { waitingBytes } from "../model/waiting.ts";
import { hasMoved, type Store } from "../store.ts";
import { grouped, size } from "../text.ts";
import type { MakeView } from "../view.ts";
import { icon } from "./icons.ts";
import { paced } from "./paced.ts";
import { makeRunOn } from "./run_on.ts";
import { QueueHeight } from "./queue_height.ts";
import { QueueList } from "./queue_list.ts";
import { showRunning } from "./queue_running.ts";

export const makeQueue: MakeView = (stage, parent) => {
  const { store } = stage;
  const devices = [...new Set(store.document.tasks.device)].map((device) => store.graph.text(device));
  const sub = el("span", { class: "sub" });
  const now = el("button", { class: "now", title: "Look at the running task" });
  const reason = el("span");
  const header = el("div", { class: "qh" }, ...["next, in this order", "waits", "runs"].map((title) => el("span", {}, title)));
  const runOnPlace = el("div");
  const runOn = makeRunOn(stage, runOnPlace);
  const list = new QueueList(stage, now, devices.length > 1);
  const view = el(
    "section",
    { class: "queue", "aria-label": "ready queue" },
    el("div", { class: "head" }, el("h3", {}, "Ready queue"), sub),
    runOnPlace,
    now,
    el("div", { class: "why" }, icon("why", 14), reason),
    header,
    list.element,
  );
  parent.append(view);
  now.addEventListener("click", () => store.update({ selected: null }));

  const height = new QueueHeight(stage, parent);

  const slow = paced(stage, (changed) => {
    if (changed.has("hoveredTask")) list.mark(store.state.hoveredTask);
    if (!hasMoved(changed) && !changed.has("selected") && !changed.has("marks")) return;
    const { state, replay } = store;
    const ready = grouped(Math.max(0, replay.queueLengths[state.t] - 1));
    sub.textContent = `${ready} ready · ${size(waitingBytes(replay)[state.t])} in the queue · ${devices.join(", ")}`;
    sub.title = sub.textContent;
    reason.textContent = replay.reason(state.t);
    view.classList.toggle("steerable", canSteer(store));
    showRunning(now, store);
    list.show();
    height.fit(header.offsetTop + header.offsetHeight, changed.has("tab"));
  });
  return {
    ...slow,
    update(changed) {
      runOn.update(changed);
      return slow.update(changed);
    },
    dispose() {
      height.dispose();
      view.remove();
    },
  };
};

/** Whether any ready task may be run next, by hand. */
function canSteer(store: Store): boolean {
  const { state, document } = store;
  return store.isLive && document.engine === "direct" && state.status === "stopped" && state.t === state.front;
}
