/** On another policy's tab of a live session: that it is simulated, and the way to make it real. */

import { el } from "../dom.ts";
import type { MakeView } from "../view.ts";
import { shown } from "./policy_tabs.ts";

export const makeRunOn: MakeView = ({ store }, parent) => {
  const button = el("button", { class: "sm" }, "run on");
  const view = el("div", { class: "run-on" }, el("span", {}, "simulated from the start"), button);
  view.hidden = true;
  parent.append(view);
  button.addEventListener("click", () => {
    store.link?.setPolicy(store.replay.schedule.policy);
    store.show(0); // what runs on is the session's own order
    store.go(store.state.front);
  });
  return {
    update(changed) {
      if (!changed.has("tab") && !changed.has("status") && !changed.has("revision")) return;
      const { status } = store.state;
      view.hidden = !(store.link && store.isSimulated && (status === "stopped" || status === "running"));
      if (view.hidden) return;
      const { policy, title } = store.replay.schedule;
      button.disabled = status === "running";
      button.textContent = `run on under ${shown(policy)}`;
      button.title = `The session goes on by this rule: ${title}`;
    },
    dispose: () => view.remove(),
  };
};
