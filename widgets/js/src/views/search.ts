/** Finds tasks by name, module, parameter or source line, and offers the best matches. */

import { el } from "../dom.ts";
import type { Store } from "../store.ts";
import type { MakeView } from "../view.ts";
import { suggest } from "../model/suggest.ts";
import { glyph, icon } from "./icons.ts";
import { lineName } from "./line_name.ts";
import { grouped } from "../text.ts";

const MOST = 12;

export const makeSearch: MakeView = ({ store, root }, parent) => {
  const input = el("input", {
    type: "search",
    placeholder: "Find a task",
    "aria-label": "find a task",
    role: "combobox",
    autocomplete: "off",
    spellcheck: "false",
    "aria-controls": "found",
    "aria-autocomplete": "list",
    "aria-expanded": "false",
  });
  const hits = el("span", { class: "hits", "aria-live": "polite" });
  const hint = el("kbd", { "aria-hidden": "true" }, "/");
  const list = el("ul", { class: "found", id: "found", role: "listbox", "aria-label": "matching tasks" });
  const view = el(
    "div",
    { class: "search" },
    el("label", { class: "field" }, icon("search", 14), input, hits, hint),
    list,
  );
  parent.append(view);

  let found: number[] = [];
  let active = 0;
  let open = false;
  const choose = (task: number) => {
    if (store.state.selected !== task) store.select(task);
    open = false;
    show();
  };
  const show = () => {
    list.hidden = !open || !store.state.query.trim();
    input.setAttribute("aria-expanded", String(!list.hidden));
    if (list.hidden) return input.removeAttribute("aria-activedescendant");
    const items = found.map((task, index) => itemOf(store, task, `found-${index}`, index === active));
    items.forEach((item, index) => item.addEventListener("click", () => choose(found[index])));
    const rest = total(store) - found.length;
    if (rest > 0) items.push(noteOf(`+${grouped(rest)} more`));
    if (!found.length) items.push(noteOf("no task has this in its name, module, parameter or source line"));
    list.replaceChildren(...items);
    if (!found.length) return input.removeAttribute("aria-activedescendant");
    input.setAttribute("aria-activedescendant", `found-${active}`);
    const { offsetTop: top, offsetHeight: height } = items[active];
    list.scrollTop = Math.max(Math.min(list.scrollTop, top - 4), top + height + 4 - list.clientHeight);
  };
  const leave = () => {
    store.find("");
    root.focus({ preventScroll: true });
  };
  const act: Record<string, () => void> = {
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    Enter: () => {
      if (!found.length) return;
      choose(found[active]);
      root.focus({ preventScroll: true }); // the deck's keys work again
    },
    Escape: leave,
  };
  const move = (by: number) => {
    active = open && found.length ? (active + by + found.length) % found.length : 0;
    open = true;
    show();
  };
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (!act[event.key]) return;
    event.preventDefault();
    act[event.key]();
  });
  input.addEventListener("input", () => {
    open = true;
    store.find(input.value);
  });
  input.addEventListener("focus", () => {
    open = true;
    show();
  });
  input.addEventListener("blur", () => {
    open = false;
    show();
  });
  // A click on the list must not take the focus away before it chooses.
  list.addEventListener("pointerdown", (event) => event.preventDefault());

  return {
    update(changed) {
      if (!changed.has("matches") && !changed.has("query")) return;
      const { query, matches } = store.state;
      if (input.value !== query) input.value = query;
      found = matches ? suggest(store.graph, matches, query, MOST) : [];
      active = 0;
      hits.textContent = matches ? grouped(total(store)) : "";
      hint.hidden = matches !== null;
      show();
    },
    dispose: () => view.remove(),
  };
};

function total(store: Store): number {
  return store.state.matches?.reduce((sum, match) => sum + match, 0) ?? 0;
}

function itemOf({ graph, replay, state, ran }: Store, task: number, id: string, active: boolean): HTMLElement {
  const item = el("li", { id, role: "option", "aria-selected": String(active), "data-task": String(task) });
  item.append(
    glyph(replay.shownState(task, state.t, ran)),
    el("span", { class: "n" }, graph.parameter(task) || graph.name(task)),
    el("span", { class: "k" }, `#${task}`),
    el("span", { class: "m" }, graph.parameter(task) ? graph.name(task) : graph.place(task)),
    lineName(graph.line(task)),
  );
  return item;
}

function noteOf(text: string): HTMLElement {
  return el("li", { class: "note", role: "presentation" }, text);
}
