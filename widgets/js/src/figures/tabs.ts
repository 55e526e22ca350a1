/** Tabs that show one panel each and support the arrow keys. */

export function workTabs(page: Document): void {
  const tabs = [...page.querySelectorAll<HTMLElement>("[role=tab]")];
  const select = (chosen: HTMLElement) => {
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", String(tab === chosen));
      tab.tabIndex = tab === chosen ? 0 : -1;
      page.getElementById(tab.getAttribute("aria-controls")!)!.hidden = tab !== chosen;
    }
  };
  for (const [place, tab] of tabs.entries()) {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", ({ key }) => {
      const step = key === "ArrowRight" ? 1 : key === "ArrowLeft" ? -1 : 0;
      if (!step) return;
      const next = tabs[(place + step + tabs.length) % tabs.length];
      select(next);
      next.focus();
    });
  }
}
