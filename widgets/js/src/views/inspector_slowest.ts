/** The slowest operations and modules of the whole backward, if its times were measured. */

import { el } from "../dom.ts";
import { count, nanoseconds } from "../format.ts";
import { type Slow, slowestOf } from "../model/slowest.ts";
import type { Store } from "../store.ts";

/** Maximum number of listed operations, and of modules. */
const MOST = 3;
const LAUNCHES = "Times of the tasks; on accelerators, the times to launch their kernels";

/** Return a function for the section, which is made anew if tasks have run or were undone. */
export function makeSlowest(store: Store): () => HTMLElement[] {
  let known = "";
  let section: HTMLElement[] = [];
  return () => {
    const { document, graph, state } = store;
    const { order, clock } = document.schedules[0];
    if (state.tab) return []; // another policy's times were not measured
    const now = `${order.length} ${clock?.duration.length} ${Object.keys(document.records).length}`;
    if (now !== known) {
      known = now;
      const found = slowestOf(document, graph);
      section = found ? [sectionOf(found)] : [];
    }
    return section;
  };
}

function sectionOf({ operations, modules, total, tasks }: NonNullable<ReturnType<typeof slowestOf>>): HTMLElement {
  const heading = el("h4", { title: LAUNCHES }, "Slowest operations", el("span", {}, `${nanoseconds(total)} in ${count(tasks, "task")}`));
  const [first, second] = [operations, modules].map((each) => each.slice(0, MOST).map((slow) => row(slow, total)));
  if (second.length) first.push(el("div", { class: "op" }, "modules"), ...second);
  return el("div", { class: "sec", "data-part": "slowest" }, heading, ...first);
}

function row({ name, elapsed, tasks, slowest }: Slow, total: number): HTMLElement {
  const share = (100 * elapsed) / total;
  const title = tasks > 1 ? `Show the slowest of its ${count(tasks, "task")}` : "Show its task";
  return el(
    "button",
    { class: "gp", "data-go": String(slowest), title },
    el("span", { class: "n" }, name),
    el("span", { class: "k" }, `${nanoseconds(elapsed)}, ${share < 1 ? "under 1" : Math.round(share)} %`),
  );
}
