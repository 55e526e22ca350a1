/** Elements for names, paths and lines of code that wrap or are cut without losing the identifying part. */

import { el } from "../dom.ts";

/** Length above which names wrap anywhere. */
const LONGEST = 300;
/**
 * Break opportunities: after a dot or an underscore, and before a capital: `Scaled·Dot·Product`,
 * `torch.·nn.·functional`.
 */
const BETWEEN = /(?<=[a-z\d])(?=[A-Z])|(?<=[._])/;
/** Length above which a text gets a button. */
const LONG = 150;

/** Return the name in pieces between which the page may break lines; the text is unchanged. */
export function breakable(name: string): (Node | string)[] {
  if (name.length > LONGEST) return [name];
  return name.split(BETWEEN).flatMap((piece, index) => (index ? [el("wbr"), piece] : [piece]));
}

/** Return an element for `model.py:120`; only the file may be cut, never the number. */
export function lineName(short: string, title = ""): HTMLElement {
  const colon = short.lastIndexOf(":");
  if (colon < 0) return el("span", { class: "line" }, el("span", {}, short));
  return el("span", { class: "line", title }, el("span", {}, short.slice(0, colon)), short.slice(colon));
}

/** Return an element for a module's path; only its start may be cut, because the end identifies the module. */
export function pathEnd(path: string, className = ""): HTMLElement {
  return el("i", { class: `end ${className}`.trim() }, el("bdi", { dir: "ltr" }, path));
}

/** A name of up to ten thousand characters: three lines, and a button for the rest. */
export class LongText {
  readonly element: HTMLElement;
  private readonly text = el("span", { class: "long" });
  private readonly more = el("button", { class: "sm", "aria-expanded": "false" });
  private shown = "";

  constructor(className: string) {
    this.element = el("div", { class: className }, this.text, this.more);
    this.more.addEventListener("click", () => this.expand(!this.text.classList.contains("whole")));
  }

  /** Show a text, followed by `after` in a muted colour. */
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
