/** Theme of the surrounding page; used by the deck, the training page and the recompute frontier. */

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

/** Keep `data-theme` up to date on a page whose style sheet follows the system otherwise. */
export function followAround(root: HTMLElement): void {
  const apply = () => {
    const theme = themeAround();
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  watchAround(apply);
  apply();
}
