/**
 * Tabs of the policies, with line pattern and peak; in a live session the running policy is marked, and branches have
 * tabs, too.
 */

import { el, svg } from "../dom.ts";
import { levelsOfMemory } from "../model/memory.ts";
import type { Schedule } from "../model/document.ts";
import type { Store } from "../store.ts";
import { size } from "../format.ts";
import type { MakeView } from "../view_types.ts";
import { dashes } from "./policy_line_styles.ts";
import { icon } from "./icons.ts";

export const makePolicyTabs: MakeView = ({ store }, parent) => {
  const list = el("div", { class: "tabs", role: "tablist", "aria-label": "policy" });
  const view = el("div", { class: "policies" }, list);
  parent.append(view);
  let tabs: HTMLElement[] = [];
  const build = () => {
    const patterns = dashes(store.schedules.map((each) => each.policy));
    tabs = store.schedules.map((schedule, tab) => tabOf(store, schedule, tab, patterns[tab]));
    list.replaceChildren(...tabs);
  };
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    store.show((store.state.tab + step + tabs.length) % tabs.length);
    tabs[store.state.tab].focus({ preventScroll: true });
  });
  /** Show all peaks, only that of the selected tab, or none, depending on the space. */
  const fit = () => {
    for (const room of ["all", "selected", "none"]) {
      list.dataset.room = room;
      if (list.scrollWidth <= list.clientWidth) return;
    }
  };
  const watch = new ResizeObserver(fit);
  watch.observe(view);
  let marked = "";
  return {
    update(changed) {
      if (!changed.has("revision") && !changed.has("branches") && !changed.has("tab") && !changed.has("status")) return;
      const said = store.schedules.map((each) => [each.policy, peak(each)]);
      const marks = JSON.stringify([said, store.state.branches, store.state.status === "closed"]);
      const isNew = marks !== marked;
      if (isNew) {
        const focused = tabs.some((each) => each.matches(":focus"));
        build();
        marked = marks;
        if (focused) tabs[store.state.tab].focus({ preventScroll: true });
      }
      const { tab } = store.state;
      tabs.forEach((each, index) => {
        each.setAttribute("aria-selected", String(index === tab));
        each.tabIndex = index === tab ? 0 : -1;
      });
      if (isNew || changed.has("tab")) fit();
      if (changed.has("tab") || changed.has("status")) reveal(list, tabs[tab]);
    },
    dispose() {
      watch.disconnect();
      view.remove();
    },
  };
};

function tabOf(store: Store, schedule: Schedule, tab: number, pattern: readonly number[]): HTMLElement {
  const branch = store.state.branches.find(({ number }) => tab && schedule.policy === `branch ${number}`);
  const why = schedule.memory ? "" : schedule.memory_note; // no peak is known
  const title = branch ? branch.text : [`${schedule.policy}: ${schedule.title}`, why].filter(Boolean).join("\n");
  const button = el("button", { role: "tab", title, "aria-controls": "main", "data-policy": schedule.policy });
  button.append(swatch(pattern), el("b", {}, shown(schedule.policy)));
  const bytes = peak(schedule);
  if (bytes) button.append(el("i", {}, bytes));
  if (branch) {
    button.dataset.branch = String(branch.number);
    button.prepend(icon("branch", 14));
  }
  if (store.link && tab === 0) button.append(el("span", { class: "live" }, store.state.status === "closed" ? "closed" : "live"));
  button.addEventListener("click", () => store.show(tab));
  return button;
}

/** Return a policy's name for its tab, with one-word names in capitals: HEAP, BFS → HEAP. */
export function shown(policy: string): string {
  return policy.split(", then ").map(titleOf).join(" → ");
}

function titleOf(policy: string): string {
  return /^[a-z]{1,6}$/.test(policy) ? policy.toUpperCase() : policy;
}

function peak({ memory }: Schedule): string {
  return memory ? size(levelsOfMemory(memory).peak.bytes) : "";
}

/** Return a line with the pattern of the memory chart, filled if the policy is shown. */
function swatch(pattern: readonly number[]): SVGSVGElement {
  const scaled = pattern.map((length) => length * 0.8).join(" ");
  return svg(
    "svg",
    { width: 14, height: 8, "aria-hidden": "true" },
    svg("rect", { width: 14, height: 8, rx: 1, fill: "currentColor" }),
    svg("path", { d: "M0 4h14", stroke: "currentColor", "stroke-width": 1.6, "stroke-dasharray": scaled }),
  );
}

/** Scroll only the list; scrollIntoView would also move the page. */
function reveal(list: HTMLElement, tab: HTMLElement): void {
  const { offsetLeft: left, offsetWidth: width } = tab;
  const from = left - list.offsetLeft;
  if (from < list.scrollLeft) list.scrollLeft = from;
  else if (from + width > list.scrollLeft + list.clientWidth) list.scrollLeft = from + width - list.clientWidth;
}
