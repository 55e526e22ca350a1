/** Keyboard shortcuts of the deck. They work while the focus is in the deck, and are hidden from JupyterLab. */

import type { Box, Tree } from "../layout/box_tree.ts";
import { WHOLE } from "../model/axis.ts";
import { timesOf } from "../model/task_times.ts";
import { levelsOfMemory } from "../model/memory.ts";
import type { Stage } from "../view_types.ts";
import { toggleHelp } from "./help.ts";
import { toggleStops } from "./stops_button.ts";
import { nextTheme } from "./theme.ts";
import { playOrStop, sessionWords } from "./transport.ts";

/** Tasks per press of an arrow key with Shift. */
const FAR = 10;

/** Duration of a tip that answers a key, milliseconds. */
const SAID = 2000;

/** Zoom factor of + and −. */
const ZOOM = 1.5;

type Action = (stage: Stage, shift: boolean) => unknown;

const ACTIONS: Record<string, Action> = {
  " ": ({ store }) => playOrStop(store),
  ArrowRight: ({ store }, shift) => store.step(shift ? FAR : 1),
  ArrowLeft: ({ store }, shift) => store.back(shift ? FAR : 1),
  Home: ({ store }) => store.back(store.state.t),
  End: ({ store }) => store.end(),
  b: ({ store }) => store.toggleBreakpoint(store.shown),
  o: ({ store }, shift) => store.stepOver(shift),
  r: ({ store }) => store.run(),
  s: (stage) => toggleStops(stage),
  f: ({ store }) => store.update({ camera: "fit" }),
  g: ({ store }) => store.update({ camera: "follow" }),
  m: ({ store }) => store.canGroup && store.showGroups(),
  n: ({ store }) => store.colourByCreation(),
  p: goToPeak,
  y: (stage) => changeScale(stage),
  t: ({ store }) => nextTheme(store),
  c: (stage) => changeAxis(stage),
  w: ({ store }) => store.update({ isFull: !store.state.isFull }),
  "+": (stage) => zoomTimeline(stage, ZOOM),
  "=": (stage) => zoomTimeline(stage, ZOOM),
  "-": (stage) => zoomTimeline(stage, 1 / ZOOM),
  "0": ({ store }) => store.update({ zoom: WHOLE }),
  "[": (stage, shift) => (shift ? foldAll(stage, true) : fold(stage, false)),
  "]": (stage, shift) => (shift ? foldAll(stage, false) : fold(stage, true)),
  "{": (stage) => foldAll(stage, true),
  "}": (stage) => foldAll(stage, false),
  "/": ({ root }) => goToSearch(root),
  "?": (stage) => toggleHelp(stage),
  Escape: ({ store, root }) => {
    const { query, isFull, selected } = store.state;
    if (query) store.find("");
    else if (isFull || selected !== null) store.update(isFull ? { isFull: false } : { selected: null });
    // for the element that contains the deck
    else root.dispatchEvent(new CustomEvent("tapescope-leave", { bubbles: true, composed: true }));
  },
};

/** Bind the keys to the deck's element. Return a function that removes them. */
export function bindKeys(stage: Stage): () => void {
  const { root } = stage;
  const down = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const target = event.target as HTMLElement;
    if (takesItself(target, event.key)) return event.stopPropagation();
    // Repeated presses of a held arrow key must not get ahead of the kernel.
    const waits = event.repeat && event.key.startsWith("Arrow") && stage.store.link?.busy === true;
    if (!waits && !act(stage, event)) return;
    event.preventDefault();
    event.stopPropagation();
  };
  root.addEventListener("keydown", down);
  return () => root.removeEventListener("keydown", down);
}

/** Return whether the focused control uses a key itself: text fields use all, buttons space and Enter. */
function takesItself(target: HTMLElement, key: string): boolean {
  const kind = target.tagName;
  if (kind === "INPUT") return (target as HTMLInputElement).type !== "range" && key !== "Escape";
  if (kind === "SELECT") return key !== "Escape";
  return (kind === "BUTTON" || kind === "A") && (key === " " || key === "Enter");
}

function act(stage: Stage, event: KeyboardEvent): boolean {
  const { key, shiftKey } = event;
  if (key >= "1" && key <= "9") {
    stage.store.show(Number(key) - 1);
    return true;
  }
  const action = ACTIONS[key] ?? ACTIONS[key.toLowerCase()];
  action?.(stage, shiftKey);
  return action !== undefined;
}

function goToSearch(root: HTMLElement): void {
  const input = root.querySelector<HTMLInputElement>(".field input");
  input?.focus({ preventScroll: true }); // selecting alone does not move the focus in every browser
  input?.select();
}

function changeAxis({ store, root, tip }: Stage): void {
  if (store.state.axis === "task" && !timesOf(store.document, store.replay)) {
    say(root, tip, "the times of its tasks were not recorded");
    return;
  }
  store.update({ axis: store.state.axis === "task" ? "clock" : "task", zoom: WHOLE });
}

function changeScale({ store, root, tip }: Stage): void {
  if (!root.querySelector(".scale:not([hidden])")) say(root, tip, "no other policy has a higher peak");
  else store.update({ ownScale: !store.state.ownScale });
}

/** Zoom around the playhead, whose position the timeline knows. */
function zoomTimeline({ root }: Stage, factor: number): void {
  root.querySelector(".time")?.dispatchEvent(new CustomEvent("zoomby", { detail: factor }));
}

export function goToPeak({ store, root, tip }: Stage): void {
  const { memory } = store;
  if (!memory) return;
  store.update({ playing: false });
  store.go(levelsOfMemory(memory).peak.place);
  const ahead = sessionWords(store);
  if (ahead) say(root, tip, `planned: ${ahead}\nArrow keys only change the view; use “back to now” or “run to it”`);
}

/** Close the innermost open box around the shown task, or open the outermost closed one. */
function fold({ store, tree, root, tip }: Stage, unfold: boolean): void {
  if (!tree || store.shown < 0) return;
  const around = boxesAround(tree, store.shown);
  const box = unfold
    ? around.findLast((each) => !store.state.open.has(each.id))
    : around.find((each) => store.state.open.has(each.id));
  if (!box) {
    const why = around.length ? "all boxes around this task are" : "no box contains this task: it is";
    say(root, tip, `${why} ${around.length ? (unfold ? "open" : "closed") : "at the top"}`);
    return;
  }
  const open = new Set(store.state.open);
  if (unfold) open.add(box.id);
  else open.delete(box.id);
  store.update({ open });
}

/** Close all boxes of the graph, or open all. */
export function foldAll({ store, tree }: Stage, shut: boolean): void {
  if (tree) store.update({ open: shut ? new Set() : new Set(tree.boxes.keys()) });
}

/** Show a tip at the bottom of the graph, whose first tasks are at the top, for a short time. */
function say(root: HTMLElement, tip: Stage["tip"], text: string): void {
  const host = root.querySelector<HTMLElement>(".view");
  if (!host) return;
  tip(text, host, 0, host.clientHeight);
  setTimeout(() => tip(null), SAID);
}

/** Return the boxes around a task, innermost first, without the top one. */
function boxesAround(tree: Tree, task: number): Box[] {
  const found: Box[] = [];
  for (let box: Box | null = tree.boxes[tree.boxOf[task]]; box?.parent; box = box.parent) found.push(box);
  return found;
}
