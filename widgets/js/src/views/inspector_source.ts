/** The line of the forward that made the task's node, with the code around it. */

import { el } from "../dom.ts";
import { NONE } from "../model/document.ts";
import type { Store } from "../store.ts";

/** Lines shown before and after. */
const AROUND = 1;
/** Longer lines of code are cut. */
const LONGEST = 2000;

export function sourceSection({ graph, document }: Store, task: number): HTMLElement[] {
  const number = document.tasks.line[task];
  const operation = graph.text(document.tasks.operation[task]);
  const said = operation && el("div", { class: "op" }, `recorded by ${operation}`);
  if (number === NONE) {
    if (!said) return [];
    return [el("div", { class: "sec", "data-part": "source" }, el("h4", {}, "Source", el("span", {}, "line not known")), said)];
  }
  const { file, short, line, function: caller, first, code } = document.lines[number];
  const heading = el("h4", {}, "Source", el("span", { title: `${file}:${line} in ${caller}` }, short));
  const section = el("div", { class: "sec", "data-part": "source" }, heading);
  const shown = window(code, line - first);
  if (shown.length) {
    const rows = shown.map((index) => {
      const text = code[index].slice(shared(code, shown), LONGEST);
      const row = el("div", { class: index === line - first ? "on" : "" }, el("em", {}, String(first + index)), text);
      if (index === line - first) row.setAttribute("aria-current", "true");
      return row;
    });
    section.append(el("div", { class: "code" }, ...rows));
  }
  if (said) section.append(said);
  return [section];
}

/** The line and those around it that are not blank at the ends: three where there are three. */
function window(code: readonly string[], at: number): number[] {
  if (!(at in code)) return [];
  let from = Math.max(0, at - AROUND);
  let to = Math.min(code.length - 1, at + AROUND);
  if (at < to && !code[to].trim()) to = at;
  if (from < at && !code[from].trim()) from = at;
  if (to - from < 2 * AROUND && from && code[from - 1].trim()) from--;
  if (to - from < 2 * AROUND && to + 1 < code.length && code[to + 1].trim()) to++;
  return Array.from({ length: to - from + 1 }, (_, index) => from + index);
}

/** By how many blanks all shown lines are indented. */
function shared(code: readonly string[], shown: readonly number[]): number {
  const indents = shown.filter((index) => code[index].trim()).map((index) => code[index].search(/\S/));
  return Math.min(...indents);
}
