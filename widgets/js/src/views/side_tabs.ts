/** Two tabs for the queues and the task if there is not enough space for both. */

import { el } from "../dom.ts";

export class SideTabs {
  readonly element: HTMLElement;
  private readonly tabs: HTMLButtonElement[];

  /** `panels` is the grid that contains both; its style sheet depends on `data-side`, 0 or 1. */
  constructor(
    private readonly panels: HTMLElement,
    titles: readonly [string, string],
  ) {
    this.tabs = titles.map((title, side) => {
      const tab = el("button", { role: "tab" }, title);
      tab.addEventListener("click", () => this.show(side));
      return tab;
    });
    this.element = el("div", { class: "side-tabs", role: "tablist", "aria-label": "queues or task" }, ...this.tabs);
    this.element.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: 0, ArrowRight: 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      this.show(to);
      this.tabs[to].focus();
    });
    this.show(0);
  }

  dispose(): void {
    delete this.panels.dataset.side;
  }

  private show(side: number): void {
    this.panels.dataset.side = String(side);
    this.tabs.forEach((tab, at) => {
      tab.setAttribute("aria-selected", String(at === side));
      tab.tabIndex = at === side ? 0 : -1;
    });
  }
}
