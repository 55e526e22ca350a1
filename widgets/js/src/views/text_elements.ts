/** Names, paths and lines of code as elements that may wrap or be cut where the rest still identifies them. */

import { el } from "../dom.ts";

/** Longer names wrap anywhere. */
const LONGEST = 300;
/** After a dot or an underscore, and before a capital: `Scaled·Dot·Product`, `torch.·nn.·functional`. */
const BETWEEN = /(?<=[a-z\d])(?=[A-Z])|(?<=[._])/;
/** Longer texts get a button. */
const LONG = 150;

/** The name in pieces that the page may put on lines of their own; its text is the same. */
export function breakable(name: string): (Node | string)[] {
  if (name.length > LONGEST) return [name];
  return name.split(BETWEEN).flatMap((piece, index) => (index ? [el("wbr"), piece] : [piece]));
}

/** `model.py:120`, of which only the file may be cut: the number stays. */
export function lineName(short: string, title = ""): HTMLElement {
  const colon = short.lastIndexOf(":");
  if (colon < 0) return el("span", { class: "line" }, el("span", {}, short));
  return el("span", { class: "line", title }, el("span", {}, short.slice(0, colon)), short.slice(colon));
}

/** A module's path, of which only the beginning may be cut: its end says which module it is. */
export function pathEnd(path: string, className = ""): HTMLElement {
  return el("i", { class: `end ${className}`.trim() }, el("bdi", { dir: "ltr" }, path));
}

/** A name that may be ten thousand characters long: three lines of it, and a button for the rest. */
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
