/** Light or dark: what the reader chose, else what the page around the deck is, followed live. */

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

/** The CSS variables as they are now, for what is drawn on a canvas. */
export function readColours(root: HTMLElement): Colours {
  const style = getComputedStyle(root);
  const read = forced.matches ? resolver(root) : (name: string) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(NAMES.map((name) => [name, read(name)])) as Colours;
}

/** The system's colours as they are here and now: a canvas has its own idea of them, and an exported file none. */
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

/** As the page, the other theme, the page's own one for good, as the page, ...: the first press is always seen. */
export function nextTheme(store: Store): void {
  const { theme } = store.state;
  const around = asAround();
  const other: Theme = around === "dark" ? "light" : "dark";
  store.update({ theme: theme === null ? other : theme === other ? around : null });
}

/** Keeps `data-theme` up to date and calls `changed` after each change, and at once. Returns what ends that. */
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
