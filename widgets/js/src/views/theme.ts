/** Light or dark: what the reader chose, else what the page around the deck is, followed live. */

import type { Store, Theme } from "../store.ts";
import type { Colours, Stage } from "../view.ts";

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
];

/** The CSS variables as they are now, for what is drawn on a canvas. */
export function readColours(root: HTMLElement): Colours {
  const style = getComputedStyle(root);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])) as Colours;
}

/** As the page, light, dark, as the page, ... */
export function nextTheme(store: Store): void {
  const { theme } = store.state;
  store.update({ theme: theme === null ? "light" : theme === "light" ? "dark" : null });
}

/** Keeps `data-theme` up to date and calls `changed` after each change, and at once. Returns what ends that. */
export function followTheme(stage: Stage, changed: () => void): () => void {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const theme = stage.store.state.theme ?? themeAround(dark.matches);
    if (stage.root.dataset.theme === theme) return;
    stage.root.dataset.theme = theme;
    changed();
  };
  const observer = new MutationObserver(apply);
  for (const element of [document.documentElement, document.body]) {
    observer.observe(element, { attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind", "class"] });
  }
  dark.addEventListener("change", apply);
  const unsubscribe = stage.store.subscribe((names) => {
    if (names.has("theme")) apply();
  });
  apply();
  return () => {
    observer.disconnect();
    dark.removeEventListener("change", apply);
    unsubscribe();
  };
}

/** JupyterLab says it on its body, and so does VS Code; elsewhere the system's preference is asked. */
function themeAround(prefersDark: boolean): Theme {
  const { jpThemeLight } = document.body.dataset;
  if (jpThemeLight) return jpThemeLight === "false" ? "dark" : "light";
  const { classList } = document.body;
  if (classList.contains("vscode-dark") || classList.contains("vscode-high-contrast")) {
    return classList.contains("vscode-high-contrast-light") ? "light" : "dark";
  }
  if (classList.contains("vscode-light")) return "light";
  return prefersDark ? "dark" : "light";
}
