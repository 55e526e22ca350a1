/** A name that may be ten thousand characters long: three lines of it, and a button for the rest. */

import { el } from "../dom.ts";
import { breakable } from "./breakable.ts";

/** Longer ones get a button. */
const LONG = 150;

export class LongText {
  readonly element: HTMLElement;
  private readonly text = el("span", { class: "long" });
  private readonly more = el("button", { class: "sm", "aria-expanded": "false" });
  private shown = "";

  constructor(className: string) {
    this.element = el("div", { class: className }, this.text, this.more);
    this.more.addEventListener("click", () => this.expand(!this.text.classList.contains("whole")));
  }

  /** `after` follows it in a quiet tone. */
  show(text: string, after = ""): void {
    const key = `${text}\n${after}`;
    if (key === this.shown) return;
    this.shown = key;
    this.text.replaceChildren(...breakable(text), ...(after ? [" ", el("span", { class: "quiet" }, after)] : []));
    this.more.hidden = text.length + after.length <= LONG;
    this.expand(false);
  }

  private expand(whole: boolean): void {
    this.text.classList.toggle("whole", whole);
    this.more.setAttribute("aria-expanded", String(whole));
    this.more.textContent = whole ? "less" : "more";
  }
}
