/** Search for tasks by name, module, parameter or source line, with suggestions. */

import { el } from "../dom.ts";
import type { Store } from "../store.ts";
import type { MakeView } from "../view_types.ts";
import { suggest } from "../model/search_ranking.ts";
import { bindCombobox } from "./combobox.ts";
import { glyph, icon } from "./icons.ts";
import { lineName } from "./text_elements.ts";
import { grouped } from "../format.ts";

const MOST = 12;

export const makeSearch: MakeView = ({ store, root }, parent) => {
  const input = el("input", { type: "search", placeholder: "Find a task", "aria-label": "find a task" });
  const hits = el("span", { class: "hits", "aria-live": "polite" });
  const hint = el("kbd", { "aria-hidden": "true" }, "/");
  const list = el("ul", { class: "found", id: "found", "aria-label": "matching tasks" });
  const view = el(
    "div",
    { class: "search" },
    el("label", { class: "field" }, icon("search", 14), input, hits, hint),
    list,
  );
  parent.append(view);

  let found: number[] = [];
  const leave = () => root.focus({ preventScroll: true }); // so that the deck's keys work again
  const box = bindCombobox(input, list, 0, {
    offers() {
      if (!store.state.query.trim()) return null;
      const rest = total(store) - found.length;
      const notes = rest > 0 ? [`+${grouped(rest)} more`] : [];
      if (!found.length) notes.push("no task has this in its name, module, parameter or source line");
      return { options: found.map((task) => itemOf(store, task)), notes };
    },
    take(index) {
      if (store.state.selected !== found[index]) store.select(found[index]);
      leave();
    },
    enter() {},
    leave() {
      store.find("");
      leave();
    },
  });
  input.addEventListener("focus", () => store.update({ searching: true }));
  input.addEventListener("blur", () => store.update({ searching: false }));
  input.addEventListener("input", () => {
    store.find(input.value);
    box.open();
  });

  return {
    update(changed) {
      if (!changed.has("matches") && !changed.has("query")) return;
      const { query, matches } = store.state;
      if (input.value !== query) input.value = query;
      found = matches ? suggest(store.replay, matches, query, MOST) : [];
      hits.textContent = matches ? `${grouped(total(store))} found` : "";
      hint.hidden = matches !== null;
      box.show();
    },
    dispose: () => view.remove(),
  };
};

function total(store: Store): number {
  return store.state.matches?.reduce((sum, match) => sum + match, 0) ?? 0;
}

export function itemOf({ graph, replay, state, ran }: Store, task: number): HTMLElement {
  const [name, where] = graph.parameter(task) ? [graph.parameter(task), graph.name(task)] : [graph.name(task), graph.place(task)];
  const item = el("li", { "data-task": String(task), title: `${name}\n${where}`.slice(0, 600) });
  item.append(
    glyph(replay.shownState(task, state.t, ran)),
    el("span", { class: "n" }, name),
    el("span", { class: "k" }, replay.nth(task)),
    el("span", { class: "m" }, where),
    lineName(graph.line(task)),
  );
  return item;
}
