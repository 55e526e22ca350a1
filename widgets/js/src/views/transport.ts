/** Start, back, play, step, to the breakpoint, end; where the deck stands; how fast it plays. */

import { el } from "../dom.ts";
import { hasMoved, type Store } from "../store.ts";
import type { MakeView } from "../view.ts";
import { icon, type IconName } from "./icons.ts";
import { grouped } from "../text.ts";

/** A live run shorter than this does not turn the play button into a stop button, milliseconds. */
const SETTLE = 150;

export const makeTransport: MakeView = ({ store }, parent) => {
  const button = (name: IconName, title: string, act: () => void) => {
    const made = el("button", { class: "ib", title, "aria-label": title, "data-act": name }, icon(name));
    made.addEventListener("click", act);
    return made;
  };
  const start = button("start", "To the start (Home)", () => store.back(store.state.t));
  const back = button("back", "Step back (←)", () => store.back());
  const play = button("play", "Play (Space)", () => playOrStop(store));
  play.classList.add("play");
  const step = button("step", "Step (→)", () => store.step());
  const run = button("breakpoint", "Run to the next breakpoint (R)", () => store.run());
  const end = button("end", "To the end (End)", () => store.end());
  const group = el(
    "div",
    { class: "grp", role: "group", "aria-label": "transport" },
    start,
    back,
    play,
    step,
    run,
    end,
  );
  parent.append(group);

  let shown: MainAction = "play";
  const showMain = () => {
    const action = mainAction(store);
    if (action === shown) return;
    shown = action;
    const title = { play: "Play (Space)", pause: "Pause (Space)", stop: "Stop after the running task" }[action];
    play.replaceChildren(icon(action));
    play.title = title;
    play.setAttribute("aria-label", title);
    play.dataset.act = action;
  };
  let timer: ReturnType<typeof setTimeout> | undefined;
  return {
    update(changed) {
      if (changed.has("status") || changed.has("playing") || changed.has("tab")) {
        clearTimeout(timer);
        if (mainAction(store) === "stop") timer = setTimeout(showMain, SETTLE);
        else showMain();
      }
      if (!hasMoved(changed)) return;
      const { t, front, status } = store.state;
      const goesOn = status === "stopped" || status === "running"; // one look for both: steps are short
      const onward = store.isLive && t >= front ? goesOn : t < store.replay.length;
      const atEnd = store.isLive ? t === front && !goesOn : t >= store.replay.length;
      quiet(start, t === 0);
      quiet(play, !store.canPlay);
      quiet(back, t === 0);
      quiet(step, !onward);
      quiet(run, !onward);
      quiet(end, atEnd);
    },
    dispose() {
      clearTimeout(timer);
      group.remove();
    },
  };
};

/** Plays, pauses, or stops what runs in the kernel. */
export function playOrStop(store: Store): void {
  if (mainAction(store) === "stop") store.link?.stop();
  else store.play();
}

type MainAction = "play" | "pause" | "stop";

function mainAction({ state }: Store): MainAction {
  if (state.playing) return "pause";
  return state.status === "running" ? "stop" : "play";
}

/** A button that can do nothing now says so, but keeps the focus: the next key must still reach the deck. */
function quiet(button: HTMLElement, nothing: boolean): void {
  button.setAttribute("aria-disabled", String(nothing));
}

/** `task 58 of 144`. */
export const makePosition: MakeView = ({ store }, parent) => {
  const view = el("div", { class: "pos" });
  parent.append(view);
  return {
    update(changed) {
      if (!hasMoved(changed)) return;
      const { t } = store.state;
      const { length } = store.replay;
      const total = grouped(length);
      const isUnreal = store.isSimulated || store.isAhead;
      if (t >= length && isUnreal) view.replaceChildren(el("b", {}, total), ` tasks ${store.unreal}`);
      else if (t >= length) view.replaceChildren(el("b", {}, total), length === 1 ? " task, finished" : " tasks, finished");
      else view.replaceChildren("task ", el("b", {}, grouped(t + 1)), ` of ${total}`);
    },
    dispose: () => view.remove(),
  };
};

/** Leads back to where a live session stands. It keeps its place while it is not there: the bar must not jump. */
export const makeBackToNow: MakeView = ({ store }, parent) => {
  if (!store.link) return { update() {}, dispose() {} };
  const button = el("button", { class: "sm back-to-now" }, "back to now");
  button.addEventListener("click", () => {
    store.update({ playing: false });
    store.go(store.state.front);
  });
  parent.append(button);
  return {
    update(changed) {
      if (!hasMoved(changed)) return;
      const { t, front } = store.state;
      button.classList.toggle("idle", !store.isLive || t === front);
      button.title = store.isAhead
        ? "What is shown is planned: to where the session stands"
        : "To where the session stands";
    },
    dispose: () => button.remove(),
  };
};

export const makeSpeed: MakeView = ({ store }, parent) => {
  const options = store.speeds.map((speed) =>
    el("option", { value: String(speed) }, `${grouped(speed)} / s`),
  );
  const select = el(
    "select",
    { class: "pick", "aria-label": "speed, tasks per second", title: "Tasks per second" },
    ...options,
  );
  select.addEventListener("change", () => store.update({ speed: Number(select.value) }));
  parent.append(select);
  return {
    update(changed) {
      if (changed.has("speed")) select.value = String(store.state.speed);
    },
    dispose: () => select.remove(),
  };
};
