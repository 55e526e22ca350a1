/** Announcement of the deck's position to screen readers: after each step, but not during playback. */

import { el } from "../dom.ts";
import type { Store } from "../store.ts";
import { whatAndWhere } from "../model/replay.ts";
import { when } from "../model/task_timing_words.ts";
import { count } from "../format.ts";
import type { MakeView } from "../view_types.ts";
import { sessionWords } from "./transport.ts";

export const makeAnnouncer: MakeView = ({ store }, parent) => {
  const region = el("div", { class: "sr", role: "status", "aria-live": "polite" });
  parent.append(region);
  return {
    update(changed) {
      const { playing, trouble, stopped, checks } = store.state;
      if (changed.has("trouble") && trouble) region.textContent = trouble;
      else if (changed.has("stopped") && stopped) region.textContent = `stopped: ${stopped.text}`;
      else if (changed.has("checks") && checks[store.shown]) {
        region.textContent = ["check", ...checks[store.shown].lines].join(": ");
      }
      else if (!playing && (changed.has("t") || changed.has("tab") || changed.has("playing"))) {
        region.textContent = changed.has("tab") ? `${store.replay.schedule.policy}: ${where(store)}` : where(store);
      } else if (!playing && changed.has("selected")) {
        region.textContent = store.state.selected === null ? where(store) : `selected ${store.replay.inWords(store.shown)}`;
      }
    },
    dispose() {
      region.remove();
    },
  };
};

/** Return `TBackward0, blocks.1.f2, runs 58th of 144, 1 ready, latest created of 2 ready`. */
export function where(store: Store): string {
  const { replay, running } = store;
  const { t } = store.state;
  if (running < 0) return store.unreal ? `${store.unreal}, the end` : `finished, ${count(replay.length, "task")} have run`;
  const ready = `${replay.queueLengths[t] - 1} ready`;
  const stands = when(replay, running, t, store.ran, store.unreal).join("");
  const said = [whatAndWhere(store.graph, running), stands, ready, replay.reason(t), sessionWords(store)];
  return said.filter(Boolean).join(", ");
}
