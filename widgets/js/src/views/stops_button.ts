/** Button with the number of breakpoints and watchpoints that opens their panel. */

import { el } from "../dom.ts";
import { grouped } from "../format.ts";
import type { MakeView, Stage } from "../view_types.ts";
import { icon } from "./icons.ts";
import { StopsPanel } from "./stops_panel.ts";

/** Open or close the deck's panel. */
export function toggleStops({ root }: Stage): void {
  root.querySelector<HTMLElement>(".stops")?.click();
}

export const makeStops: MakeView = (stage, parent) => {
  const { store, root } = stage;
  const badge = el("span", {});
  const opener = el("button", { class: "ib stops", "data-act": "stops", "aria-expanded": "false" }, icon("octagon"), badge);
  parent.append(opener);
  let panel: StopsPanel | null = null;
  const close = (refocus: boolean) => {
    panel?.element.remove();
    panel = null;
    opener.setAttribute("aria-expanded", "false");
    if (refocus) opener.focus({ preventScroll: true });
  };
  opener.addEventListener("click", () => {
    if (panel) return close(true);
    panel = new StopsPanel(store, close);
    opener.setAttribute("aria-expanded", "true");
    root.querySelector(".frame")?.append(panel.element);
    panel.placeBelow(opener);
    panel.focus();
  });
  return {
    update(changed) {
      if (panel && changed.has("trouble")) panel.showError();
      if (panel && (changed.has("stops") || changed.has("tab"))) panel.show();
      if (!changed.has("stops")) return;
      const { stops } = store.state;
      const off = stops.filter(({ enabled }) => !enabled).length;
      badge.textContent = stops.length ? grouped(stops.length) : "";
      opener.title = "Breakpoints and watchpoints (S)";
      opener.ariaLabel = `stops: ${grouped(stops.length)}${off ? `, ${grouped(off)} disabled` : ""}`;
      root.dataset.stops = String(stops.length);
    },
    draw() {
      panel?.placeBelow(opener);
      return false;
    },
    dispose() {
      close(false);
      opener.remove();
    },
  };
};

