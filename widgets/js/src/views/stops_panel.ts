/** The panel of breakpoints and watchpoints, with a field that adds new ones. */

import { el } from "../dom.ts";
import { find, typedTask } from "../model/find.ts";
import { suggestPlaces } from "../model/breakpoint_places.ts";
import { suggest } from "../model/search_ranking.ts";
import type { Store } from "../store.ts";
import { count, nth } from "../format.ts";
import { bindCombobox, type Offers } from "./combobox.ts";
import { icon } from "./icons.ts";
import { lineName } from "./text_elements.ts";
import { itemOf } from "./search.ts";
import { StopRow } from "./stop_row.ts";

/** Maximum number of suggested places. */
const MOST = 10;

/** Conditions of watchpoints, as in engine/session/breakpoints/watch_conditions.py. */
const CONDITIONS: readonly (readonly [condition: string, says: string])[] = [
  ["nan", "an element is NaN"],
  ["inf", "an element is infinite"],
  ["zero", "all elements are zero"],
  ["norm>1e3", "the norm is above a bound"],
  ["norm<1e-8", "the norm is below a bound"],
  ["ratio>100", "a module call multiplies the norm by more than this"],
  ["ratio<0.01", "a module call multiplies the norm by less than this"],
  ["upcast", "its dtype becomes wider"],
  ["shape", "a broadcast widened it"],
  ["missing", "a parameter has no gradient at the end"],
];

export class StopsPanel {
  readonly element: HTMLElement;
  private readonly list = el("ol");
  private readonly empty = el("p", { class: "empty" });
  private readonly kind = el("select", { class: "pick", "aria-label": "kind" });
  private readonly input = el("input", { "aria-label": "where, or condition" });
  private readonly error = el("p", { class: "error", role: "alert" });
  private readonly rows = new Map<number, StopRow>();
  /** True while the kernel may still answer with an error. */
  private awaitsAnswer = false;

  /** `close` removes the panel, and may return the focus to where it was. */
  constructor(
    private readonly store: Store,
    private readonly close: (refocus: boolean) => void,
  ) {
    const { kind, input, list, empty, error } = this;
    kind.append(el("option", { value: "break" }, "break before"));
    if (store.link) kind.append(el("option", { value: "watch" }, "watch for"));
    const add = el("button", { class: "sm" }, "add");
    const offers = el("ul", { class: "found", id: "places", "aria-label": "places and conditions" });
    const field = el("div", { class: "field" }, input, offers);
    const shut = el("button", { class: "ib", "aria-label": "close", title: "Close (Esc)" }, icon("close"));
    const heading = el("h3", {}, "Breakpoints and watchpoints", shut);
    const form = el("div", { class: "add" }, kind, field, add);
    this.element = el("div", { class: "panel", role: "dialog", "aria-label": "stops" }, heading, list, empty, form, error);
    const box = bindCombobox(input, offers, -1, {
      offers: () => this.offers(),
      take: (index) => {
        input.value = offers.children[index].getAttribute("data-where") ?? "";
        input.setSelectionRange(input.value.length, input.value.length);
      },
      enter: () => this.add(),
      leave: (wasMarked) => wasMarked || this.close(true),
    });
    input.addEventListener("input", () => {
      error.textContent = "";
      box.open();
    });
    kind.addEventListener("change", () => {
      input.value = error.textContent = "";
      this.hint();
    });
    add.addEventListener("click", () => this.add());
    shut.addEventListener("click", () => this.close(true));
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      this.close(true);
    });
    this.element.addEventListener("focusout", ({ relatedTarget }) => {
      const to = relatedTarget as HTMLElement | null;
      if (to && !this.element.contains(to) && !to.matches(".stops")) this.close(false);
    });
    this.hint();
    this.show();
  }

  /** Place the panel below its button, as close as the deck's width allows. */
  placeBelow(opener: HTMLElement): void {
    const { left, bottom } = opener.getBoundingClientRect();
    const frame = this.element.parentElement!.getBoundingClientRect();
    const most = frame.width - this.element.offsetWidth - 8;
    this.element.style.left = `${Math.max(8, Math.min(most, left - frame.left))}px`;
    this.element.style.top = `${bottom - frame.top + 4}px`;
  }

  focus(): void {
    this.input.focus({ preventScroll: true });
  }

  /** Show an error about a request of this panel. */
  showError(): void {
    const { trouble } = this.store.state;
    if (!this.awaitsAnswer || !trouble) return;
    this.awaitsAnswer = false;
    this.error.textContent = trouble.replace(/^ValueError: /, "");
    this.store.update({ trouble: "" });
  }

  show(): void {
    const { stops } = this.store.state;
    if (this.awaitsAnswer && stops.length > this.rows.size) {
      this.awaitsAnswer = false;
      this.input.value = "";
    }
    const numbers = new Set(stops.map(({ number }) => number));
    for (const [number, row] of this.rows) {
      if (numbers.has(number)) continue;
      const hadFocus = row.element.matches(":focus-within");
      row.element.remove();
      this.rows.delete(number);
      if (hadFocus) this.focus();
    }
    for (const stop of stops) {
      let row = this.rows.get(stop.number);
      if (!row) {
        this.rows.set(stop.number, (row = new StopRow(this.store, stop)));
        this.list.append(row.element);
      }
      row.show(stop);
    }
    this.list.hidden = !stops.length;
    this.empty.hidden = !!stops.length;
    const more = this.store.link ? ", or a condition to watch gradients for" : "";
    this.empty.textContent = `No breakpoints. Enter a task to stop before${more}.`;
  }

  private get watches(): boolean {
    return this.kind.value === "watch";
  }

  private hint(): void {
    const { store, watches, input } = this;
    if (watches) input.placeholder = "nan, norm>1e3, …";
    else input.placeholder = store.link ? "Addmm, layer.3, model.py:120" : "53rd, or part of a name";
  }

  private offers(): Offers {
    const { store, input, watches } = this;
    const { graph } = store;
    const typed = input.value;
    if (watches) {
      const found = CONDITIONS.filter(([condition]) => condition.startsWith(typed.trim()));
      return { options: found.map(([where, says]) => option(where, says)), notes: [] };
    }
    const run = store.replayOf(0);
    const matches = !store.link || typedTask(run, typed) !== undefined ? find(run, typed) : null;
    if (matches || !store.link) {
      const tasks = matches ? suggest(run, matches, typed, MOST) : [store.shown].filter((task) => task >= 0);
      const options = tasks.map((task) => itemOf(store, task));
      options.forEach((each, index) => each.setAttribute("data-where", run.nth(tasks[index]) || `#${tasks[index]}`));
      return { options, notes: tasks.length ? [] : ["unknown task"] };
    }
    const places = suggestPlaces(graph, typed, store.shown, MOST);
    return { options: places.map((each) => option(each.where, each.what, count(each.tasks, "task"))), notes: [] };
  }

  private add(): void {
    const { store, input, error, watches } = this;
    const typed = input.value.trim();
    error.textContent = "";
    if (!typed) return this.focus();
    const task = watches ? undefined : typedTask(store.replayOf(0), typed);
    if (task !== undefined && task >= 0) {
      if (!store.state.breakpoints.has(task)) store.toggleBreakpoint(task);
      input.value = "";
    } else if (!store.link || task !== undefined) {
      const tasks = `tasks 1st to ${nth(store.replayOf(0).length)}`;
      error.textContent = task === undefined ? `Unknown task; without a kernel, use one of the ${tasks}, or of the list.` : `Unknown task; expected one of the ${tasks}.`;
    } else {
      this.awaitsAnswer = true;
      store.link.ask(watches ? { kind: "watch", condition: typed } : { kind: "break", where: typed });
    }
  }
}

function option(where: string, what: string, more = ""): HTMLElement {
  const kind = el("span", { class: "k" }, what);
  const extent = more ? [el("span", { class: "m" }, more)] : [];
  const name = what === "line" ? lineName(where) : el("span", { class: "n" }, where);
  return el("li", { class: "place", "data-where": where }, name, kind, ...extent);
}

