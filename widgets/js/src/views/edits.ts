/** Buttons that edit the gradients in the input buffer of a live session's current task. */

import { el } from "../dom.ts";
import type { Command, Store } from "../store.ts";

type How = Extract<Command, { kind: "edit" }>["how"];

export interface Edits {
  readonly element: HTMLElement;
  update(): void;
}

export function makeEdits(store: Store): Edits {
  const ask = (how: How, value: number | null = null) => store.link?.ask({ kind: "edit", how, value });
  const button = (how: How, says: string, title: string, act: () => void) => {
    const made = el("button", { class: "sm", title, "data-edit": how }, says);
    made.addEventListener("click", act);
    return made;
  };
  /** Create a button with a number field. */
  const withNumber = (how: How, says: string, title: string, name: string, first: string) => {
    const input = el("input", { type: "number", step: "any", value: first, "aria-label": name });
    const act = () => {
      const value = input.valueAsNumber;
      if (Number.isFinite(value)) ask(how, value);
      else input.focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") act();
    });
    return el("span", { class: "pair" }, button(how, says, title, act), input);
  };
  const restore = button("restore", "restore", "Restore the previous gradients", () => ask("restore"));
  const element = el(
    "div",
    { class: "acts edits", role: "group", "aria-label": "edit the gradients in the input buffer" },
    el("span", { class: "quiet" }, "edit"),
    button("zero", "zero", "Set the gradients in the input buffer to zero", () => ask("zero")),
    withNumber("scale", "×", "Multiply the gradients in the input buffer by this", "factor", "0.1"),
    withNumber("clip", "clip", "Scale the gradients in the input buffer to at most this norm", "largest norm", "1"),
    restore,
  );
  return {
    element,
    update() {
      const { running } = store;
      element.hidden = !(store.canEdit && running >= 0);
      restore.hidden = !store.record(running)?.edited || store.document.engine !== "direct";
    },
  };
}
