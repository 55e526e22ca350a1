/**
 * Button that requests a prediction of a large graph's memory. It takes a while, during which no task can run, so it
 * needs a request.
 */

import { el } from "../dom.ts";
import type { MakeView } from "../view_types.ts";

export const makePredict: MakeView = ({ store }, parent) => {
  const button = el("button", { class: "sm predict" }, "predict memory");
  button.hidden = true;
  parent.append(button);
  let requested = false;
  button.addEventListener("click", () => {
    requested = true;
    show();
    store.link?.ask({ kind: "predict" });
  });
  const show = () => {
    const seconds = store.replay.schedule.predict_s ?? null;
    button.hidden = !store.link || seconds === null || store.state.front > 0 || store.state.status !== "stopped";
    button.disabled = requested;
    if (seconds === null) return;
    const takes = seconds < 1 ? "less than a second" : `about ${Math.round(seconds)} s`;
    button.textContent = requested ? "predicting…" : `predict memory (${takes})`;
  };
  return {
    update(changed) {
      if (changed.has("revision")) requested = false;
      if (["revision", "tab", "status", "front"].some((name) => changed.has(name as never))) show();
    },
    dispose: () => button.remove(),
  };
};
