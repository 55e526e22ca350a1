/** Whether a task's backward is that of its forward, where somebody has asked. */

import { el } from "../dom.ts";
import type { Check } from "../model/document.ts";
import type { Store } from "../store.ts";
import { icon } from "./icons.ts";
import { withLinks } from "./task_links.ts";

export function checkSection(store: Store, task: number): HTMLElement[] {
  const isAsked = store.state.checking === task;
  const check: Check | undefined = store.state.checks[task];
  if (!check && !isAsked) return [];
  const found = isAsked ? "pending" : verdictOf(check!.ok);
  const said = { pending: "checking…", ok: "right", wrong: "wrong", unknown: "can't tell" }[found];
  const sign = found === "ok" ? [icon("check", 14)] : found === "wrong" ? [icon("warning", 14)] : [];
  const heading = el("h4", {}, "Check", el("span", { class: "verdict" }, ...sign, said));
  const lines = isAsked ? [] : check!.lines.map((line) => el("p", {}, ...withLinks(line, store)));
  return [el("div", { class: "sec", "data-part": "check", "data-check": found }, heading, ...lines)];
}

function verdictOf(ok: boolean | null): "ok" | "wrong" | "unknown" {
  return ok === null ? "unknown" : ok ? "ok" : "wrong";
}
