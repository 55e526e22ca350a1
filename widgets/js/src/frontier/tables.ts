/** The tables below the charts: the plan by module, and the fates of the storages. */

import { size } from "../format.ts";
import { type Fate, FATES, type Frontier, type Plan } from "./frontier_data.ts";
import { put } from "./svg_elements.ts";

const WORDS = ["module", "operations"];

/** Add the table of modules, hidden for a plan without rows. Return a function that shows a plan. */
export function addModules(host: Element): (plan: Plan) => void {
  const section = put(host, "section");
  put(section, "h3", {}, "By module");
  const scroll = put(section, "div", { class: "scroll" });
  return (plan) => {
    scroll.textContent = "";
    const [names, ...cells] = plan.cells;
    section.hidden = !cells.length;
    const table = put(scroll, "table");
    const kinds = names.map((name) => (WORDS.includes(name) ? {} : { class: "number" }));
    const head = put(put(table, "thead"), "tr");
    names.forEach((name, at) => put(head, "th", kinds[at], name));
    const body = put(table, "tbody");
    for (const row of cells) {
      const line = put(body, "tr");
      row.forEach((text, at) => put(line, "td", kinds[at], text));
    }
  };
}

/** Add the largest storages and a bar of all storages. Return a function that shows a plan. */
export function addStorages(host: Element, data: Frontier): (plan: Plan) => void {
  const section = put(host, "section");
  const title = put(section, "h3", {}, "Storages of the forward");
  const bar = put(section, "div", { class: "whole" });
  const key = put(section, "div", { class: "key" });
  const table = put(put(section, "div", { class: "scroll" }), "table");
  const head = put(put(table, "thead"), "tr");
  for (const [text, kind] of [["size", "number"], ["fate"], ["made by"], ["in"], ["time", "number"], [""]]) {
    put(head, "th", { class: kind }, text);
  }
  const body = put(table, "tbody");
  const rows = data.storages.map(([bytes, operation, module, takes, obstacle]) => {
    const row = put(body, "tr");
    put(row, "td", { class: "number" }, bytes);
    const fate = put(row, "td", { class: "fate" });
    for (const text of [operation, module]) put(row, "td", {}, text);
    put(row, "td", { class: "number" }, takes);
    put(row, "td", {}, obstacle);
    return { row, fate };
  });
  if (data.others > 0) {
    put(title, "span", {}, `the ${rows.length} largest; ${data.others} smaller ones are not listed`);
  }
  return (plan) => {
    bar.textContent = key.textContent = "";
    const isHeld = (fate: Fate) => fate !== "w"; // intermediates are not saved, with or without the plan
    const sum = plan.totals.reduce((total, [fate, bytes]) => total + (isHeld(fate) ? bytes : 0), 0) || 1;
    for (const [fate, bytes] of plan.totals) {
      if (!bytes) continue;
      const [text, colour] = FATES[fate];
      const background = `background:var(--${colour})`;
      if (isHeld(fate)) put(bar, "div", { style: `width:${(100 * bytes) / sum}%;${background}` });
      const one = put(key, "span");
      put(one, "i", { class: "box", style: background });
      one.append(`${text} ${size(bytes)}`);
    }
    rows.forEach(({ row, fate }, number) => {
      const letter = plan.fates[number] as Fate;
      const [text, colour] = FATES[letter];
      fate.textContent = "";
      put(fate, "i", { style: `background:var(--${colour})` });
      fate.append(text);
      row.className = letter === "-" ? "soft" : "";
    });
  };
}
