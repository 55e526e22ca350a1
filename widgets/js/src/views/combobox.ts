/** A text field with a list of suggestions: arrow keys move through it, Enter or a click accepts one. */

import { el } from "../dom.ts";

export interface Offers {
  options: HTMLElement[];
  /** Notes below the suggestions. */
  notes: string[];
}

export interface ComboboxActions {
  /** Return the suggestions for the current text; null for no list. */
  offers(): Offers | null;
  take(index: number): void;
  /** Called for Enter without a marked suggestion. */
  enter(): void;
  /** Called for Escape. `wasMarked`: a suggestion was marked, and only the mark is removed. */
  leave(wasMarked: boolean): void;
}

/**
 * Bind the combobox. `first` is the suggestion marked before an arrow key is pressed, -1 for none. Return a function
 * that updates the list.
 */
export function bindCombobox(input: HTMLInputElement, list: HTMLElement, first: number, acts: ComboboxActions) {
  const described = { role: "combobox", "aria-autocomplete": "list", "aria-controls": list.id, autocomplete: "off" };
  for (const [name, value] of Object.entries(described)) input.setAttribute(name, value);
  input.spellcheck = false;
  list.role = "listbox";
  let active = first;
  let open = false;
  let count = 0;
  const show = () => {
    const offers = open ? acts.offers() : null;
    list.hidden = !offers || !(offers.options.length || offers.notes.length);
    input.ariaExpanded = String(!list.hidden);
    input.removeAttribute("aria-activedescendant");
    count = offers?.options.length ?? 0;
    if (!offers) return;
    const notes = offers.notes.map((note) => el("li", { class: "note", role: "presentation" }, note));
    list.replaceChildren(...offers.options, ...notes);
    offers.options.forEach((option, index) => {
      option.role = "option";
      option.id = `${list.id}-${index}`;
      option.ariaSelected = String(index === active);
      option.addEventListener("click", () => take(index));
    });
    const marked = offers.options[active];
    if (!marked) return;
    input.setAttribute("aria-activedescendant", marked.id);
    const { offsetTop: top, offsetHeight: height } = marked;
    list.scrollTop = Math.max(Math.min(list.scrollTop, top - 4), top + height + 4 - list.clientHeight);
  };
  const set = (isOpen: boolean) => {
    open = isOpen;
    active = first;
    show();
  };
  const take = (index: number) => {
    set(false);
    acts.take(index);
  };
  const move = (by: number) => {
    if (!open || !count) return set(true);
    active = (Math.max(active, by < 0 ? 0 : -1) + by + count) % count;
    show();
  };
  const keys: Record<string, () => void> = {
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    Enter: () => {
      if (open && active >= 0 && active < count) return take(active);
      set(false);
      acts.enter();
    },
    Escape: () => {
      const wasMarked = active >= 0;
      set(false);
      acts.leave(wasMarked);
    },
  };
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  input.addEventListener("focus", () => set(true));
  input.addEventListener("blur", () => set(false));
  // A click on the list must not move the focus before it chooses.
  list.addEventListener("pointerdown", (event) => event.preventDefault());
  list.hidden = true;
  return { show, open: () => set(true) };
}
