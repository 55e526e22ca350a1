/** Result of comparing a task's backward with its forward, if requested. */

import { el } from "../dom.ts";
import type { Check } from "../model/document.ts";
import type { Store } from "../store.ts";
import { icon } from "./icons.ts";
import { withLinks } from "./task_links.ts";

export function checkSection(store: Store, task: number): HTMLElement[] {
  const isAsked = store.state.checking === task;
  const check: Check | undefined = store.state.checks[task];
  if (!check && !isAsked) return [];
  const found = isAsked ? "pending" : verdictOf(check!);
  const said = { pending: "checking…", ok: "right", but: "right, but", wrong: "wrong", unknown: "undecided" }[found];
  const signs = { pending: [], ok: ["check"], but: ["warning"], wrong: ["warning"], unknown: [] } as const;
  const sign = signs[found].map((name) => icon(name, 14));
  const heading = el("h4", {}, "Check", el("span", { class: "verdict" }, ...sign, said));
  const lines = isAsked ? [] : check!.lines.map((line) => el("p", {}, ...withLinks(line, store)));
  return [el("div", { class: "sec", "data-part": "check", "data-check": found }, heading, ...lines)];
}

function verdictOf({ ok, warns }: Check): "ok" | "but" | "wrong" | "unknown" {
  if (ok) return warns ? "but" : "ok";
  return ok === null ? "unknown" : "wrong";
}
