/** The line of the forward that created the task's node, with the surrounding code. */

import { el } from "../dom.ts";
import { type DeckDocument, NONE } from "../model/document.ts";
import { linesAround } from "../model/source_lines.ts";
import type { Store } from "../store.ts";
import { breakable, lineName } from "./text_elements.ts";

/** Indentation of a wrapped line's continuation in characters, and its limit. */
const HANG = 2;
const DEEPEST = 16;
/** Maximum length of a line of code. */
const LONGEST = 2000;

/** Return whether the forward was captured: a line or a module call is known. */
function wasCaptured({ lines, calls }: DeckDocument): boolean {
  return lines.length > 0 || calls.path.length > 0;
}

/**
 * Return the unbreakable pieces of a line; it may wrap after a comma or an opening bracket, but not after its
 * indentation.
 */
function pieces(code: string): Node[] {
  const found = code.match(/(^\s+)?([^\s,([{]+[,([{]*|[,([{]+)\s*/g) ?? [];
  return found.flatMap((piece) => [el("span", {}, piece), el("wbr")]);
}

function unknown(): HTMLElement {
  const said = "No source: run the forward under ts.capture() or %%tapescope";
  return el("div", { class: "sec", "data-part": "source" }, el("div", { class: "op none" }, said));
}

export function sourceSection({ graph, document }: Store, task: number): HTMLElement[] {
  const number = document.tasks.line[task];
  const operation = graph.text(document.tasks.operation[task]);
  const said = operation && el("div", { class: "op" }, "recorded by ", ...breakable(operation));
  if (number === NONE) {
    if (!said) return wasCaptured(document) ? [] : [unknown()];
    return [
      el(
        "div",
        { class: "sec", "data-part": "source" },
        el("h4", {}, "Source", el("span", {}, "line unknown")),
        said,
      ),
    ];
  }
  const { file, short, line, function: caller, first, code } = document.lines[number];
  const heading = el("h4", {}, "Source", lineName(short, `${file}:${line} in ${caller}`));
  const section = el("div", { class: "sec", "data-part": "source" }, heading);
  const { shown, indent } = linesAround(code, line - first);
  if (shown.length) {
    const rows = shown.map((index) => {
      const text = code[index].slice(indent, indent + LONGEST);
      const on = index === line - first;
      const words = el("span", { title: on ? "" : text }, ...pieces(text));
      if (on) words.style.setProperty("--hang", String(Math.min(HANG + text.search(/\S|$/), DEEPEST)));
      return el("div", on ? { class: "on", "aria-current": "true" } : {}, el("em", {}, String(first + index)), words);
    });
    section.append(el("div", { class: "code" }, ...rows));
  }
  if (said) section.append(said);
  return [section];
}
