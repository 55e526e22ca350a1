/** What theme the page around has, asked in one place by deck, loop and slider. */

export type Around = "light" | "dark";

const SAID_BY = ["data-jp-theme-light", "data-theme", "theme", "class"];

/**
 * JupyterLab, VS Code and marimo say it on their body, Colab on its root; undefined where nobody does, and the system's
 * preference is to be asked.
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

/** Calls `changed` whenever the page may have said something else. */
export function watchAround(changed: () => void): MutationObserver {
  const observer = new MutationObserver(changed);
  for (const element of [document.documentElement, document.body]) observer.observe(element, { attributeFilter: SAID_BY });
  return observer;
}

/** Keeps `data-theme` of a page that asks the system in its own style sheet. */
export function followAround(root: HTMLElement): void {
  const apply = () => {
    const theme = themeAround();
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
  };
  watchAround(apply);
  apply();
}
