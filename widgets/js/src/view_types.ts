/** Interfaces shared by all parts of the page. */

import type { Tree } from "./layout/box_tree.ts";
import type { Changed, Store } from "./store.ts";

export interface View {
  /** Update the DOM after a change of the state. Return whether the view must be drawn. */
  update(changed: Changed): boolean | void;
  /**
   * Draw the view, at most once per frame. Return whether it must be drawn again in the next frame, because an
   * animation continues.
   */
  draw?(now: number): boolean;
  dispose(): void;
}

/** Resources that views share besides the store. */
export interface Stage {
  store: Store;
  /** Outermost element of the deck, with data-theme and the CSS variables. */
  root: HTMLElement;
  colours: Colours;
  /** True if the user prefers reduced motion. */
  still: boolean;
  /** Boxes of the graph, set by the graph panel. */
  tree: Tree | null;
  /** Request a draw of this view in the next frame. */
  redraw(view: View): void;
  /** Show a tooltip (text, newlines kept) at a point of `host`; hide it if `text` is null. */
  tip(text: string | null, host?: HTMLElement, x?: number, y?: number): void;
}

/** CSS variables of the theme, read once per theme. */
export type Colours = Record<
  | "bg" | "panel" | "sunk" | "line" | "line2" | "ink" | "ink2" | "ink3" | "accent" | "accent-ink" | "accent-soft"
  | "done" | "done-ink" | "box" | "saved" | "buffer" | "pgrad" | "work" | "other" | "held" | "unknown"
  | "listed" | "consumed" | "param" | "state"
  | "bad" | "hue0" | "hue1" | "hue2" | "hue3" | "hue4" | "hue5",
  string
>;

export type MakeView = (stage: Stage, parent: HTMLElement) => View;
