/**
 * Start, back, play, step, over and out of a module, to the breakpoint, end; breakpoints, the position and the speed.
 */

import { el } from "../dom.ts";
import { hasMoved, type Store } from "../store.ts";
import type { MakeView } from "../view_types.ts";
import { icon, type IconName } from "./icons.ts";
import { makeStops } from "./stops_button.ts";
import { count, grouped, nth } from "../format.ts";

/** Duration up to which a live run does not turn the play button into a stop button, milliseconds. */
const SETTLE = 150;

export const makeTransport: MakeView = (stage, parent) => {
  const { store } = stage;
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
  const over = button("over", "Step over this module (O)", () => store.stepOver());
  const out = button("out", "Step out of this module (⇧O)", () => store.stepOver(true));
  const run = button("breakpoint", "Run to the next breakpoint (R)", () => store.run());
  const end = button("end", "To the end (End)", () => store.end());
  const group = el(
    "div",
    { class: "grp", role: "group", "aria-label": "transport" },
    start,
    back,
    play,
    step,
    over,
    out,
    run,
    end,
  );
  parent.append(group);
  const stops = makeStops(stage, group);

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
      stops.update(changed);
      if (changed.has("status") || changed.has("playing") || changed.has("tab")) {
        clearTimeout(timer);
        if (mainAction(store) === "stop") timer = setTimeout(showMain, SETTLE);
        else showMain();
      }
      if (!hasMoved(changed)) return;
      const { t, front, status } = store.state;
      const canContinue = status === "stopped" || status === "running"; // the same look for both, because steps are short
      const isOver = store.isLive && t >= front && !canContinue;
      const atEnd = t >= store.replay.length && !(store.isAtFront && canContinue);
      const onward = store.isAtFront ? canContinue : !atEnd;
      quiet(start, t === 0);
      quiet(play, !store.canPlay);
      quiet(back, t === 0);
      for (const each of [step, over, out]) quiet(each, !onward);
      quiet(run, store.isLive && t >= front ? isOver : !onward);
      quiet(end, atEnd || (isOver && store.isAtFront));
      const ahead = sessionWords(store);
      for (const each of [step, over, out, end]) each.title = `${each.ariaLabel}${ahead && `: in the plan, ${ahead}`}`;
      run.title = `${run.ariaLabel}${ahead && `: ${ahead}, and continues from there`}`;
    },
    draw(now) {
      stops.draw?.(now);
      return false;
    },
    dispose() {
      clearTimeout(timer);
      stops.dispose();
      group.remove();
    },
  };
};

/** Play, pause, or stop the kernel's run. */
export function playOrStop(store: Store): void {
  if (mainAction(store) === "stop") store.link?.stop();
  else store.play();
}

type MainAction = "play" | "pause" | "stop";

function mainAction({ state }: Store): MainAction {
  if (state.playing) return "pause";
  return state.status === "running" ? "stop" : "play";
}

/** Return `the session is before the 7th` while a later planned position is shown; else "". */
export function sessionWords({ isLive, isAhead, state }: Store): string {
  return isLive && isAhead ? `the session is before the ${nth(state.front + 1)}` : "";
}

/** Mark a button as disabled but keep its focus, so that the next key still reaches the deck. */
function quiet(button: HTMLElement, nothing: boolean): void {
  button.setAttribute("aria-disabled", String(nothing));
}

/** Create the position display: `58th of 144`, at the start `before the 1st of 144`. */
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
      else view.replaceChildren(t ? "" : "before the ", el("b", {}, nth(t + 1)), ` of ${total}`);
    },
    dispose: () => view.remove(),
  };
};

/**
 * Create two buttons: one shows the live session's position, the other rewinds the session to the shown position. Both
 * keep their space, so that nothing jumps.
 */
export const makePast: MakeView = ({ store }, parent) => {
  if (!store.link) return { update() {}, dispose() {} };
  const now = el("button", { class: "sm", "aria-label": "back to now" }, el("span", {}, "back to "), "now");
  const rewind = el("button", { class: "sm rewind", "aria-label": "undo to here" }, icon("rewind", 14));
  rewind.append(el("span", {}, "undo to here"));
  const view = el("div", { class: "past" }, now, rewind);
  now.addEventListener("click", () => {
    store.update({ playing: false });
    store.go(store.state.front);
  });
  rewind.addEventListener("click", () => store.rewind());
  parent.append(view);
  return {
    update(changed) {
      if (!hasMoved(changed) && !changed.has("history")) return;
      const { t, front, history } = store.state;
      now.disabled = !store.isLive || t === front; // a merely invisible button would lose its focus without an event
      rewind.disabled = !store.canRewind;
      view.classList.toggle("idle", now.disabled);
      now.title = store.isAhead
        ? "The shown position is planned. Back to the session's position"
        : "Back to the session's position";
      rewind.classList.toggle("idle", rewind.disabled);
      rewind.hidden = !history;
      rewind.title = `Undo ${count(front - t, "task")}, back to the shown position`;
    },
    dispose: () => view.remove(),
  };
};

/** Speed from which on the actual speed is also shown, tasks per second. */
const WIDE_FROM = 100;

export const makeSpeed: MakeView = ({ store }, parent) => {
  const options = store.speeds.map((speed) =>
    el("option", { value: String(speed) }, `${grouped(speed)} / s`),
  );
  const select = el(
    "select",
    { class: "pick", "aria-label": "speed, tasks per second", title: "Tasks per second" },
    ...options,
  );
  select.addEventListener("change", () => store.update({ speed: Number(select.value), reached: null }));
  parent.append(select);
  return {
    update(changed) {
      if (!changed.has("speed") && !changed.has("reached")) return;
      const { speed, reached } = store.state;
      select.value = String(speed);
      select.dataset.wide = String(speed >= WIDE_FROM || reached !== null);
      const note = `; ${grouped(reached ?? 0)} ran in the last second`;
      select.title = `Tasks per second${reached === null ? "" : note}`;
      for (const [at, each] of store.speeds.entries()) {
        const of = each === speed && reached !== null ? `${grouped(reached)} of ` : "";
        options[at].textContent = `${of}${grouped(each)} / s`;
      }
    },
    dispose: () => select.remove(),
  };
};
