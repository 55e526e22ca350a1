/** The inspector of one task: description, time, location, gradients and saved tensors. */

import { el } from "../dom.ts";
import { hasMoved, type Store } from "../store.ts";
import type { MakeView, View } from "../view_types.ts";
import { replayTimes } from "../model/recompute.ts";
import { readyBefore } from "../model/input_buffer_bytes.ts";
import { createdWords } from "../model/creation.ts";
import { NEVER } from "../model/replay.ts";
import { when } from "../model/task_timing_words.ts";
import { nanoseconds, nth } from "../format.ts";
import { makeCreationStrip } from "./creation_strip.ts";
import { makeEdits } from "./edits.ts";
import { glyph, icon } from "./icons.ts";
import { checkSection } from "./inspector_check.ts";
import { groupSection } from "./groups.ts";
import { gradientSections } from "./inspector_gradients.ts";
import { savedSection } from "./inspector_saved.ts";
import { makeSlowest } from "./inspector_slowest.ts";
import { sourceSection } from "./inspector_source.ts";
import { LongText } from "./text_elements.ts";
import { paced } from "./throttled_view.ts";
import { followLinks } from "./task_links.ts";

/** Names of unusual kinds of nodes, as in inspector/graph/kinds.py. */
const UNUSUAL: Record<string, string> = {
  function: "custom Function",
  copy_slices: "CopySlices (in-place write)",
  compiled: "compiled region",
  checkpoint: "reentrant checkpoint",
  module_hook: "module backward hook",
  error: "raises when run",
};

const CREATED = "Nodes are numbered by creation; Python accepts this number";
const NO_INPUTS = "Needs the forward's inputs: %%tapescope --keep-inputs, or ts.capture(keep_inputs=True)";

export const makeInspector: MakeView = (stage, parent) => {
  const { store } = stage;
  const sign = el("span", { style: "display: grid" });
  const name = new LongText("n");
  const place = new LongText("meta");
  const facts = el("div", { class: "st" });
  const breakpoint = el("button", { class: "sm", "data-act": "breakpoint", title: "Breakpoint (B)" });
  breakpoint.append(icon("octagon", 12), "breakpoint");
  breakpoint.addEventListener("click", () => store.toggleBreakpoint(store.shown));
  const runTo = el("button", { class: "sm", "data-act": "run-to" });
  runTo.addEventListener("click", () => goTo(store, store.shown));
  const check = el("button", { class: "sm", "data-act": "check" }, "check");
  const acts = el("div", { class: "acts" }, breakpoint, runTo, check);
  const edits = makeEdits(store);
  const slowest = makeSlowest(store);
  const created = makeCreationStrip(stage, () => stage.redraw(shown));
  const title = el("div", { class: "ttl" }, sign, name.element);
  const top = el("div", { class: "top" }, title, place.element, facts, acts, edits.element, created.element);
  const body = el("div");
  const view = el("section", { class: "insp", "aria-label": "task", tabindex: "0" }, top, body);
  parent.append(view);

  let requested = "";
  const ask = (task: number) => {
    const { link, state, replay } = store;
    if (!link || !store.isLive || state.status !== "stopped" || state.t !== state.front) return;
    const arrived = replay.state(task, state.t);
    const question = `${task} ${state.front}`;
    if ((arrived !== "ready" && arrived !== "running") || store.record(task) || requested === question) return;
    requested = question;
    link.inspect(task);
  };

  check.addEventListener("click", () => store.check(store.shown));

  const slow = paced(stage, (changed) => {
    const { state, shown: task } = store;
    if (changed.has("marks") || changed.has("breakpoints") || changed.has("t") || changed.has("selected") || changed.has("tab")) {
      breakpoint.setAttribute("aria-pressed", String(state.breakpoints.has(task)));
    }
    if (!hasMoved(changed) && !changed.has("selected") && !changed.has("checking")) return;
    view.hidden = task < 0;
    if (task < 0) return;
    if (changed.has("selected") && state.selected !== null) view.scrollTop = 0;
    view.dataset.task = String(task);
    showTop(store, task, { sign, name, place, facts });
    const { says, title } = wayTo(store, task);
    runTo.hidden = !says;
    runTo.textContent = says;
    runTo.title = title;
    check.hidden = !store.isLive || (state.status !== "stopped" && state.status !== "finished");
    check.disabled = !canCheck(store, task);
    check.title = check.disabled ? NO_INPUTS : "Compare its backward with finite differences of its forward";
    edits.update();
    const focused = body.matches(":focus-within");
    body.replaceChildren(
      ...checkSection(store, task),
      ...sourceSection(store, task),
      ...groupSection(store, task),
      ...gradientSections(store, task),
      ...savedSection(store, task),
      ...slowest(),
    );
    if (focused) view.focus({ preventScroll: true });
    ask(task);
  });
  followLinks(body, store);
  const shown: View = {
    update: (changed) => [created.update(changed), slow.update(changed)].some(Boolean),
    draw(now) {
      created.draw?.(now);
      return slow.draw!(now);
    },
    dispose() {
      created.dispose();
      view.remove();
    },
  };
  return shown;
};

/**
 * Return whether a task can be checked. Without the forward's inputs only a custom Function can, for the tensors it
 * saves.
 */
function canCheck({ document, graph }: Store, task: number): boolean {
  return document.keeps_inputs !== false || graph.text(document.tasks.kind[task]) === "function";
}

interface Top {
  sign: HTMLElement;
  name: LongText;
  place: LongText;
  facts: HTMLElement;
}

function showTop(store: Store, task: number, { sign, name, place, facts }: Top): void {
  const { graph, replay } = store;
  const { t } = store.state;
  const stands = replay.shownState(task, t, store.ran);
  const before = stands === "ready" ? readyBefore(replay, task, t) + 1 : 0;
  const state = task === store.failed ? "failed" : stands;
  sign.replaceChildren(glyph(state, 14, before && before < 10 ? String(before) : ""));
  const leaf = graph.leaf[task] === 1;
  name.show(graph.name(task));
  if (leaf) place.show(graph.parameter(task) || "a leaf without a name", "parameter");
  else place.show(graph.place(task), graph.module(task) ? graph.moduleClass(task) : "");
  const kind = graph.text(graph.document.tasks.kind[task]);
  const parts: Node[] = [strong(...when(replay, task, t, store.ran, store.unreal))];
  parts.push(el("span", { class: "q", title: CREATED }, createdWords(graph, task)));
  if (UNUSUAL[kind]) parts.push(strong("", UNUSUAL[kind]));
  const hooks = store.record(task)?.hooks;
  if (hooks && stands !== "waiting") parts.push(strong("hooks: ", hooks.join(", ")));
  const elapsed = stands === "done" ? store.record(task)?.elapsed_ns : null;
  if (elapsed) parts.push(strong("took ", nanoseconds(elapsed)));
  const replayed = replayTimes(replay, task);
  if (replayed) parts.push(strong("recomputation: ", replayed));
  facts.replaceChildren(...parts);
}

/** Return the parts as text, every second one emphasized. */
function strong(...parts: string[]): HTMLElement {
  return el("span", {}, ...parts.map((part, index) => (index % 2 ? el("b", {}, part) : part)));
}

/** Return the text of the button that leads to a task; "" if it is unnecessary or impossible. */
function wayTo(store: Store, task: number): { says: string; title: string } {
  const { replay, state } = store;
  const place = replay.place[task];
  const isToCome = store.isLive && place > state.front;
  if (place === NEVER || (place === state.t && !isToCome)) return { says: "", title: "" };
  if (!isToCome) {
    return { says: `go to the ${nth(place + 1)}`, title: "Show the position before it runs" };
  }
  const runs = state.status === "stopped";
  return { says: runs ? "run to it" : "", title: "Run the session until this task is next" };
}

function goTo(store: Store, task: number): void {
  const place = store.replay.place[task];
  store.update({ playing: false });
  if (store.isLive && store.link && place > store.state.front) store.link.runTo(task);
  else store.go(place);
}
