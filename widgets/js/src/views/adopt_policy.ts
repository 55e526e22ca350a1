/**
 * Banner on the tab of another policy or branch of a live session: its description, and the button that switches to it.
 */

import { el } from "../dom.ts";
import { count, grouped } from "../format.ts";
import type { MakeView } from "../view_types.ts";
import { shown } from "./policy_tabs.ts";

export const makeRunOn: MakeView = ({ store }, parent) => {
  const says = el("span");
  const button = el("button", { class: "sm" }, "run on");
  const view = el("div", { class: "run-on" }, says, button);
  view.hidden = true;
  parent.append(view);
  button.addEventListener("click", () => {
    if (store.branch) return store.takeBranch();
    store.link?.setPolicy(store.replay.schedule.policy);
    store.show(0); // the session's own order is the one that runs
    store.go(store.state.front);
  });
  return {
    update(changed) {
      if (!changed.has("tab") && !changed.has("status") && !changed.has("revision")) return;
      const { branch } = store;
      const { status } = store.state;
      const canContinue = status === "stopped" || status === "running" || (branch && status === "finished");
      view.hidden = !(store.link && store.state.tab && canContinue);
      if (view.hidden) return;
      const { policy, title } = store.replay.schedule;
      button.disabled = status === "running";
      const forked = branch?.parent ? `, forked after ${grouped(branch.forked_at)}` : "";
      says.textContent = branch ? `${count(branch.ran, "task")} ran${forked}` : "simulated from the start";
      button.textContent = branch ? "continue from this branch" : `run on under ${shown(policy)}`;
      button.title = branch ? branch.text : `Continue the session under this policy: ${title}`;
    },
    dispose: () => view.remove(),
  };
};
