/** What every part of the page is. */

import type { Tree } from "./layout/box_tree.ts";
import type { Changed, Store } from "./store.ts";

export interface View {
  /** Called after each change of the state: brings the DOM up to date. Returns whether it must be drawn. */
  update(changed: Changed): boolean | void;
  /** Draws, at most once a frame. Returns whether it must be drawn again in the next: an animation goes on. */
  draw?(now: number): boolean;
  dispose(): void;
}

/** What views share besides the store. */
export interface Stage {
  store: Store;
  /** The deck's outermost element: has data-theme and the CSS variables. */
  root: HTMLElement;
  colours: Colours;
  /** The user prefers no motion. */
  still: boolean;
  /** The boxes of the graph; the graph panel makes it. */
  tree: Tree | null;
  /** Asks that a view is drawn at the next frame. */
  redraw(view: View): void;
  /** Shows a tooltip (text, newlines kept) at a point of `host`, or hides it. */
  tip(text: string | null, host?: HTMLElement, x?: number, y?: number): void;
}

/** The CSS variables of the theme, read once per theme. */
export type Colours = Record<
  | "bg" | "panel" | "sunk" | "line" | "line2" | "ink" | "ink2" | "ink3" | "accent" | "accent-ink" | "accent-soft"
  | "done" | "done-ink" | "box" | "saved" | "buffer" | "pgrad" | "work" | "other" | "held" | "unknown"
  | "listed" | "consumed" | "param" | "state"
  | "hue0" | "hue1" | "hue2" | "hue3" | "hue4" | "hue5",
  string
>;

export type MakeView = (stage: Stage, parent: HTMLElement) => View;
