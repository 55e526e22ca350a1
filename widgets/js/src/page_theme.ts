/** Theme of the surrounding page; used by the deck, the training page and the recompute frontier. */

import { el } from "./dom.ts";
import { icon } from "./views/icons.ts";

export type Around = "light" | "dark";

const SAID_BY = ["data-jp-theme-light", "data-theme", "theme", "class"];

/**
 * Return the theme of the surrounding page. JupyterLab, VS Code and marimo set it on the body, Colab on the root
 * element. Return undefined if none does; the system's preference applies then.
 */
export function themeAround(): Around | undefined {
  const { jpThemeLight, theme = document.documentElement.getAttribute("theme") } = document.body.dataset;
  if (jpThemeLight) return jpThemeLight === "false" ? "dark" : "light";
  const { classList } = document.body;
  if (classList.contains("vscode-dark") || classList.contains("vscode-high-contrast")) {
    return classList.contains("vscode-high-contrast-light") ? "light" : "dark";
  }
  if (classList.contains("vscode-light")) return "light";
  return theme === "dark" || theme === "light" ? theme : undefined;
}

/** Call `changed` whenever the page's theme may have changed. */
export function watchAround(changed: () => void): MutationObserver {
  const observer = new MutationObserver(changed);
  for (const element of [document.documentElement, document.body]) observer.observe(element, { attributeFilter: SAID_BY });
  return observer;
}

/** Return whether this is a page that tapescope saved, and not a notebook. */
export function isOwnPage(): boolean {
  return document.querySelector('meta[name="generator"][content="tapescope"]') !== null;
}

/**
 * Keep `data-theme` up to date on a page whose style sheet follows the system otherwise. Return the button with which
 * the reader chooses a theme.
 */
export function followAround(root: HTMLElement): HTMLElement {
  let chosen: Around | undefined;
  const themed = isOwnPage() ? [root, document.documentElement] : [root];
  const apply = () => {
    const theme = chosen ?? themeAround();
    for (const { dataset } of themed) {
      if (dataset.theme === theme) continue; // writing the same value again would call the observer again
      if (theme) dataset.theme = theme;
      else delete dataset.theme;
    }
  };
  const button = el("button", { type: "button", class: "theme" });
  const show = () => {
    button.replaceChildren(icon(chosen === undefined ? "follow_page" : chosen === "light" ? "sun" : "moon"));
    button.ariaLabel = `theme: ${chosen ?? "same as the page"}`;
    button.title = `Theme: ${chosen ?? "same as the page"}`;
  };
  button.addEventListener("click", () => {
    chosen = chosen === undefined ? "light" : chosen === "light" ? "dark" : undefined;
    apply();
    show();
  });
  watchAround(apply);
  apply();
  show();
  return button;
}
