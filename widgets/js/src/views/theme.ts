/** Light or dark theme: the user's choice, otherwise that of the surrounding page, followed live. */

import { mixed } from "../canvas.ts";
import { el } from "../dom.ts";
import type { Store, Theme } from "../store.ts";
import { themeAround, watchAround } from "../page_theme.ts";
import type { Colours, Stage } from "../view_types.ts";

const NAMES: readonly (keyof Colours)[] = [
  "bg",
  "panel",
  "sunk",
  "line",
  "line2",
  "ink",
  "ink2",
  "ink3",
  "accent",
  "accent-ink",
  "accent-soft",
  "done",
  "done-ink",
  "box",
  "saved",
  "buffer",
  "pgrad",
  "work",
  "other",
  "held",
  "unknown",
  "listed",
  "consumed",
  "param",
  "state",
  "bad",
  "hue0",
  "hue1",
  "hue2",
  "hue3",
  "hue4",
  "hue5",
];

const forced = matchMedia("(forced-colors: active)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const asAround = (): Theme => themeAround() ?? (dark.matches ? "dark" : "light");

/** Return the current CSS variables for drawing on a canvas. */
export function readColours(root: HTMLElement): Colours {
  const style = getComputedStyle(root);
  const read = forced.matches ? resolver(root) : (name: string) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(NAMES.map((name) => [name, read(name)])) as Colours;
}

/**
 * Return a function that resolves the system's colours. A canvas would resolve them differently, and an exported file
 * not at all.
 */
function resolver(root: HTMLElement): (name: string) => string {
  const probe = el("span", { style: "forced-color-adjust: none" });
  return (name) => {
    root.append(probe);
    probe.style.color = `var(--${name})`;
    const { color } = getComputedStyle(probe);
    probe.remove();
    return mixed(color, color, 1);
  };
}

/**
 * Switch to the next theme: from the page's to the opposite one, to the page's current one fixed, and back. The first
 * press therefore always has a visible effect.
 */
export function nextTheme(store: Store): void {
  const { theme } = store.state;
  const around = asAround();
  const other: Theme = around === "dark" ? "light" : "dark";
  store.update({ theme: theme === null ? other : theme === other ? around : null });
}

/** Keep `data-theme` up to date. Call `changed` now and after each change. Return a function that stops it. */
export function followTheme(stage: Stage, changed: () => void): () => void {
  const apply = () => {
    const theme = stage.store.state.theme ?? asAround();
    if (stage.root.dataset.theme === theme) return;
    stage.root.dataset.theme = theme;
    changed();
  };
  const observer = watchAround(apply);
  const repaint = () => {
    apply();
    changed();
  };
  dark.addEventListener("change", repaint);
  forced.addEventListener("change", repaint);
  const unsubscribe = stage.store.subscribe((names) => {
    if (names.has("theme")) apply();
  });
  apply();
  return () => {
    observer.disconnect();
    dark.removeEventListener("change", repaint);
    forced.removeEventListener("change", repaint);
    unsubscribe();
  };
}
