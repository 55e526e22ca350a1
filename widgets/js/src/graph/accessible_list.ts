/**
 * An invisible list of buttons for everything in view, for screen readers, the keyboard and tests. It is a single tab
 * stop: arrow keys move in it, Enter selects a task or opens and closes a box, Escape leaves it.
 */

import type { PlacedBox, Rect } from "../layout/layout_types.ts";
import { MOST_CELLS } from "../layout/layers.ts";
import type { Box } from "../layout/box_tree.ts";
import { el } from "../dom.ts";
import type { Store } from "../store.ts";
import { pathOf, titleOf } from "./draw_box.ts";
import { countOf, type Facts, stateOf } from "./frame_state.ts";
import { grown, touch } from "./spatial_index.ts";
import { layerRect } from "./draw_layers.ts";
import { nameOfBox, nameOfSpot, tipOfLayer } from "./tooltips.ts";
import type { Scene } from "./scene.ts";
import type { Spot } from "./scene_types.ts";

const MOST = 300;
/**
 * Margin beyond the edges within which items are listed too, in pixels of the picture, so that arrow keys can leave the
 * view.
 */
const BEYOND = 40;
/** Minimum intervals between updates of the list during playback and camera movements, milliseconds. */
const PACES = { stopped: 0, playing: 300, moving: 1000 };
/** Maximum pause between two camera moves of one gesture, milliseconds. */
const PAUSE = 150;
/** Steps of the keys that move in the list. */
const MOVES: Record<string, number> = {
  ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -Infinity, End: Infinity,
};

export interface MirrorActions {
  select(task: number): void;
  toggle(box: PlacedBox): void;
  /** Show this layer for its equal layers, or return to the automatic choice. */
  pin(box: PlacedBox, layer: number): void;
  /** Called when the keyboard focus reaches an item, which must then be brought into view. */
  focus(task: number | null, rect: Rect): void;
  /** Called when the focus leaves the list. */
  blur(): void;
  /** Called for Escape. */
  leave(): void;
}

export type Entry = { key: string } & ({ spot: Spot } | { box: PlacedBox } | { layersOf: PlacedBox; layer: number });

interface Item {
  entry: Entry;
  item: HTMLLIElement;
  button: HTMLButtonElement;
}

export class Mirror {
  readonly list = el("ul", { class: "sr", "aria-label": "tasks and modules in view", "data-mirror": "graph" });
  private readonly items = new Map<string, Item>();
  /** The tab stop of the list. */
  private stop: Item | undefined;
  private shownFor: readonly unknown[] = [];
  private area: Rect | null = null;
  private movedAt = -Infinity;
  private updatedAt = -Infinity;

  constructor(
    private readonly store: Store,
    private readonly actions: MirrorActions,
  ) {
    this.list.addEventListener("click", (event) => this.act(event.target));
    this.list.addEventListener("focusin", (event) => this.follow(event.target));
    this.list.addEventListener("focusout", () => actions.blur());
    this.list.addEventListener("keydown", (event) => this.press(event));
  }

  /** Focused entry. */
  get focused(): Entry | null {
    return this.itemOf(activeIn(this.list))?.entry ?? null;
  }

  /** Update the list. Return whether it is too early and must be repeated. */
  update(facts: Facts, area: Rect, pace: keyof typeof PACES, now: number): boolean {
    const { x, y, width, height } = area;
    if (this.area && (this.area.x !== x || this.area.y !== y || this.area.width !== width)) this.movedAt = now;
    this.area = area;
    const { counts, t, ran, breakpoints, cardMatches, grouping } = facts; // counts depend on the scene and the replay
    const groups = grouping?.direction;
    const wanted = [counts, facts.version, t, ran, breakpoints, cardMatches, groups, this.store.state.selected, x, y, width, height];
    if (wanted.every((each, index) => each === this.shownFor[index])) return false;
    const least = Math.max(PACES[pace], now - this.movedAt < PAUSE ? PACES.moving : 0);
    if (now - this.updatedAt < least) return true;
    this.updatedAt = now;
    this.shownFor = wanted;
    this.fill(facts, entriesIn(facts, grown(area, BEYOND)));
    return false;
  }

  private fill(facts: Facts, entries: readonly Entry[]): void {
    const { focused } = this;
    const seen = new Set(entries.map(({ key }) => key));
    let before: HTMLLIElement | null = null;
    for (const entry of entries) {
      const item = this.show(facts, entry);
      const next: Element | null = before ? before.nextElementSibling : this.list.firstElementChild;
      if (next !== item && entry.key !== focused?.key) this.list.insertBefore(item, next);
      before = item;
    }
    if (focused && !isIn(facts.scene, focused)) this.items.get(heirOf(facts.scene, focused))?.button.focus();
    for (const [key, { item, button }] of this.items) {
      if (seen.has(key) || button === activeIn(this.list)) continue;
      item.remove();
      this.items.delete(key);
    }
    const [first] = entries;
    this.stopAt(this.stillListed(this.stop) ?? this.items.get(`task ${facts.ringed}`) ?? this.items.get(first?.key));
  }

  private stillListed(item: Item | undefined): Item | undefined {
    return item && this.items.get(item.entry.key) === item ? item : undefined;
  }

  private stopAt(item: Item | undefined): void {
    if (item === this.stop) return;
    this.stop?.button.setAttribute("tabindex", "-1");
    item?.button.setAttribute("tabindex", "0");
    this.stop = item;
  }

  private show(facts: Facts, entry: Entry): HTMLLIElement {
    let made = this.items.get(entry.key);
    if (!made) {
      const button = el("button", { type: "button", tabindex: "-1", "data-key": entry.key });
      made = { entry, button, item: el("li", {}, button) };
      this.items.set(entry.key, made);
    }
    made.entry = entry;
    const { button } = made;
    if ("spot" in entry) {
      const { spot } = entry;
      set(button, "data-task", String(spot.task));
      set(button, "data-state", stateOf(facts, spot));
      set(button, "aria-pressed", String(this.store.state.selected === spot.task));
      setText(button, nameOfSpot(this.store, facts, spot));
    } else if ("layer" in entry) {
      const { layersOf, layer } = entry;
      set(button, "data-layer", String(layer));
      set(button, "aria-pressed", String(facts.layers.get(layersOf.box.id) === layer));
      setText(button, tipOfLayer(facts, layersOf, layer).replace("\n", ", "));
    } else {
      const { box } = entry;
      set(button, "data-box", String(box.box.id));
      set(button, "data-path", pathOf(facts, box) || titleOf(facts, box));
      set(button, "aria-expanded", String(!box.closed));
      if (box.closed) {
        const index = facts.scene.boxes.get(box.box.id) as number;
        set(button, "data-state", countOf(facts, index).state);
      } else button.removeAttribute("data-state");
      setText(button, nameOfBox(facts, box));
    }
    return made.item;
  }

  private itemOf(target: EventTarget | null): Item | undefined {
    return this.items.get((target as HTMLElement | null)?.dataset?.key ?? "");
  }

  private act(target: EventTarget | null): void {
    const entry = this.itemOf(target)?.entry;
    if (entry && "spot" in entry) this.actions.select(entry.spot.task);
    else if (entry && "layer" in entry) this.actions.pin(entry.layersOf, entry.layer);
    else if (entry) this.actions.toggle(entry.box);
  }

  private follow(target: EventTarget | null): void {
    const item = this.itemOf(target);
    if (!item) return;
    this.stopAt(item);
    const { entry } = item;
    if ("spot" in entry) this.actions.focus(entry.spot.task, entry.spot.rect);
    else if ("layer" in entry) this.actions.focus(null, layerRect(entry.layersOf, entry.layer));
    else this.actions.focus(null, entry.box.rect);
  }

  /** Handle a key. The keys that move here also step the deck, which must not see them. */
  private press(event: KeyboardEvent): void {
    const { key, target, ctrlKey, altKey, metaKey } = event;
    if (ctrlKey || altKey || metaKey || !(key in MOVES || key === "Escape")) return;
    event.preventDefault();
    event.stopPropagation();
    if (key === "Escape") return this.actions.leave();
    const { children } = this.list;
    const from = [...children].findIndex((item) => item.contains(target as Node));
    const to = Math.max(0, Math.min(children.length - 1, from + MOVES[key]));
    (children[to].firstElementChild as HTMLElement).focus({ preventScroll: true });
  }
}

function isIn(scene: Scene, entry: Entry): boolean {
  return "spot" in entry ? scene.spotOf[entry.spot.task] >= 0 : scene.boxes.has(boxOf(entry).box.id);
}

function boxOf(entry: Exclude<Entry, { spot: Spot }>): PlacedBox {
  return "layer" in entry ? entry.layersOf : entry.box;
}

/** Return the layers of a box that have a button: all, or only those next to the shown one in a strip. */
function layersOf({ scene }: Facts, { box, closed }: PlacedBox): number[] {
  const { layers } = box;
  if (!layers || closed) return [];
  const all = Array.from({ length: layers.count }, (_, layer) => layers.count - 1 - layer);
  const shown = scene.choice.get(box.id) ?? layers.drawn;
  return layers.count > MOST_CELLS ? all.filter((layer) => Math.abs(layer - shown) <= 1) : all;
}

/** Return the key of the closed box that now contains the entry. */
function heirOf(scene: Scene, entry: Entry): string {
  let box = "spot" in entry ? (scene.cardAround(entry.spot.task)?.box ?? null) : boxOf(entry).box.parent;
  while (box && !scene.boxes.has(box.id)) box = box.parent;
  return box ? `box ${box.id}` : "";
}

/** Return the entries in the order of a backward, newest first; a box precedes its content, a user its pills. */
function entriesIn(facts: Facts, area: Rect): Entry[] {
  const { scene } = facts;
  const boxes = scene.layout.boxes.filter(({ rect }) => touch(rect, area)).slice(0, MOST);
  const spots = scene.grid.search(area).map((index) => scene.spots[index]);
  const shown = spots.filter(({ kind }) => kind !== "stub").slice(0, MOST - boxes.length);
  const entries: { entry: Entry; age: number }[] = [
    ...boxes.flatMap((box) => {
      const age = newestIn(box.box, scene.graph.leaf) + 0.9 - box.depth / 1000;
      const buttons = layersOf(facts, box).map((layer, place) => ({
        entry: { key: `layer ${box.box.id} ${layer}`, layersOf: box, layer },
        age: age - (place + 1) * 1e-6,
      }));
      return [{ entry: { key: `box ${box.box.id}`, box }, age }, ...buttons];
    }),
    ...shown.map((spot) => ({
      entry: { key: `task ${spot.task}`, spot },
      age: spot.user - (spot.kind === "pill" ? 0.05 : 0),
    })),
  ];
  return entries.sort((one, other) => other.age - one.age).map(({ entry }) => entry);
}

/** Return the newest task of a box that is not a leaf, because leaves are as old as their parameters. */
function newestIn(box: Box, leaf: Uint8Array): number {
  const last = box.children.findLast((child) => typeof child !== "number" || !leaf[child]);
  if (last === undefined) return -1;
  return typeof last === "number" ? last : newestIn(last, leaf);
}

function activeIn(list: HTMLElement): Element | null {
  return (list.getRootNode() as Document | ShadowRoot).activeElement;
}

function set(element: Element, name: string, value: string): void {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}
