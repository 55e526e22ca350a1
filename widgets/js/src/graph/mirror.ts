/**
 * What is seen, as buttons in a list that nobody sees: for screen readers, for the keyboard and for tests. Tab moves
 * among them, Enter selects a task or opens and closes a box.
 */

import type { PlacedBox, Rect } from "../layout/placed.ts";
import type { Box } from "../layout/tree.ts";
import { el } from "../dom.ts";
import type { Store } from "../store.ts";
import { countOf, type Facts, stateOf } from "./facts.ts";
import { touch } from "./grid.ts";
import { nameOfBox, nameOfSpot } from "./says.ts";
import type { Spot } from "./scene.ts";

const MOST = 300;
/** While the deck plays, or the camera moves, the list follows this often, milliseconds. */
const PACES = { stopped: 0, playing: 300, moving: 1000 };

export interface MirrorActions {
  select(task: number): void;
  toggle(box: PlacedBox): void;
  /** The reader has come to this by the keyboard: what it stands for must be seen. */
  focus(task: number | null, rect: Rect): void;
}

type Entry = { key: string } & ({ spot: Spot } | { box: PlacedBox });

export class Mirror {
  readonly list = el("ul", { class: "sr", "aria-label": "tasks and modules in view", "data-mirror": "graph" });
  private readonly items = new Map<string, { item: HTMLLIElement; button: HTMLButtonElement; rect: Rect }>();
  private entries: Entry[] = [];
  private updatedAt = -Infinity;

  constructor(
    private readonly store: Store,
    private readonly actions: MirrorActions,
  ) {
    this.list.addEventListener("click", (event) => this.act(event.target));
    this.list.addEventListener("focusin", (event) => this.follow(event.target));
    this.list.addEventListener("focusout", () => this.store.update({ hoveredTask: null }));
  }

  /** Brings the list up to date. Returns whether it was too early and must be done again. */
  update(facts: Facts, area: Rect, pace: keyof typeof PACES, now: number): boolean {
    if (now - this.updatedAt < PACES[pace]) return true;
    this.updatedAt = now;
    this.entries = entriesIn(facts, area);
    const seen = new Set(this.entries.map(({ key }) => key));
    for (const [key, { item, button }] of this.items) {
      if (seen.has(key) || isFocused(button)) continue;
      item.remove();
      this.items.delete(key);
    }
    let before: HTMLLIElement | null = null;
    for (const entry of this.entries) {
      const item = this.show(facts, entry);
      const next: Element | null = before ? before.nextElementSibling : this.list.firstElementChild;
      if (next !== item && !item.contains(activeIn(this.list))) this.list.insertBefore(item, next);
      before = item;
    }
    return false;
  }

  private show(facts: Facts, entry: Entry): HTMLLIElement {
    let made = this.items.get(entry.key);
    if (!made) {
      const button = el("button", { type: "button", "data-key": entry.key });
      made = { button, item: el("li", {}, button), rect: { x: 0, y: 0, width: 0, height: 0 } };
      this.items.set(entry.key, made);
    }
    const { button } = made;
    if ("spot" in entry) {
      const { spot } = entry;
      made.rect = spot.rect;
      set(button, "data-task", String(spot.task));
      set(button, "data-state", stateOf(facts, spot));
      set(button, "aria-pressed", String(this.store.state.selected === spot.task));
      setText(button, nameOfSpot(this.store, facts, spot));
    } else {
      const { box } = entry;
      made.rect = box.rect;
      set(button, "data-box", String(box.box.id));
      set(button, "data-path", box.box.path || box.box.title);
      set(button, "aria-expanded", String(!box.closed));
      if (box.closed) {
        const index = facts.scene.boxes.get(box.box.id) as number;
        set(button, "data-state", countOf(facts, index).state);
      } else button.removeAttribute("data-state");
      setText(button, nameOfBox(facts, box));
    }
    return made.item;
  }

  private entryOf(target: EventTarget | null): Entry | undefined {
    const key = (target as HTMLElement).dataset?.key;
    return this.entries.find((entry) => entry.key === key);
  }

  private act(target: EventTarget | null): void {
    const entry = this.entryOf(target);
    if (entry && "spot" in entry) this.actions.select(entry.spot.task);
    else if (entry) this.actions.toggle(entry.box);
  }

  private follow(target: EventTarget | null): void {
    const entry = this.entryOf(target);
    if (entry && "spot" in entry) this.actions.focus(entry.spot.task, entry.spot.rect);
    else if (entry) this.actions.focus(null, entry.box.rect);
  }
}

/** The newest first, as the backward goes; a box before what is in it, a pill after its user. */
function entriesIn({ scene }: Facts, area: Rect): Entry[] {
  const boxes = scene.layout.boxes.filter(({ rect }) => touch(rect, area)).slice(0, MOST);
  const spots = scene.grid.search(area).map((index) => scene.spots[index]);
  const shown = spots.filter(({ kind }) => kind !== "stub").slice(0, MOST - boxes.length);
  const entries: { entry: Entry; age: number }[] = [
    ...boxes.map((box) => ({
      entry: { key: `box ${box.box.id}`, box },
      age: newestIn(box.box, scene.graph.leaf) + 0.9 - box.depth / 1000,
    })),
    ...shown.map((spot) => ({
      entry: { key: `task ${spot.task}`, spot },
      age: spot.user - (spot.kind === "pill" ? 0.05 : 0),
    })),
  ];
  return entries.sort((one, other) => other.age - one.age).map(({ entry }) => entry);
}

/** The newest task of a box that is no leaf: those are as old as their parameters. */
function newestIn(box: Box, leaf: Uint8Array): number {
  const last = box.children.findLast((child) => typeof child !== "number" || !leaf[child]);
  if (last === undefined) return -1;
  return typeof last === "number" ? last : newestIn(last, leaf);
}

function activeIn(list: HTMLElement): Element | null {
  return (list.getRootNode() as Document | ShadowRoot).activeElement;
}

function isFocused(button: HTMLButtonElement): boolean {
  return activeIn(button) === button;
}

function set(element: Element, name: string, value: string): void {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}
