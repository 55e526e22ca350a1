/** A breakpoint or watchpoint in the list. */

import { el } from "../dom.ts";
import { type StopPoint, stopsBefore, taskOf } from "../model/stops.ts";
import type { Store } from "../store.ts";
import { count } from "../format.ts";
import { icon } from "./icons.ts";

export class StopRow {
  readonly element: HTMLElement;
  private readonly check = el("input", { type: "checkbox" });
  private readonly title = el("b");
  private readonly facts = el("span", { class: "d" });
  private stop: StopPoint;

  constructor(
    private readonly store: Store,
    stop: StopPoint,
  ) {
    this.stop = stop;
    const { number, kind, tasks } = stop;
    const drop = el("button", { class: "ib", "aria-label": `delete ${nameOf(kind)} ${number}`, title: "Delete" }, icon("close"));
    const sign = icon(kind === "break" ? "octagon" : "watch", 14);
    const text = el("span", { class: "t" }, this.title, this.facts);
    this.title.title = stop.text;
    this.element = el("li", { "data-stop": String(number), "data-kind": kind });
    this.element.append(el("label", {}, this.check, String(number), sign), text);
    if (kind === "break" && tasks.length) {
      const next = el("button", { class: "go", title: "Show the next task that it stops before" }, "show");
      next.addEventListener("click", () => this.select());
      this.element.append(next);
    }
    this.element.append(drop);
    this.check.addEventListener("change", () => store.enable(number, this.check.checked));
    drop.addEventListener("click", () => store.remove(this.stop));
  }

  show(stop: StopPoint): void {
    this.stop = stop;
    const { number, kind, tasks, calls, hits, enabled } = stop;
    this.title.textContent = this.name;
    this.check.ariaLabel = `${nameOf(kind)} ${number}, ${this.name}, enabled`;
    this.check.checked = enabled;
    this.element.dataset.enabled = String(enabled);
    const any = kind === "break" ? "any task" : "every gradient";
    const several = calls.length ? `the first task of ${count(new Set(calls).size, "call")}` : count(tasks.length, "task");
    const extent = tasks.length ? several : any;
    const hit = hits ? `, hit ${count(hits, "time")}` : "";
    this.facts.textContent = `${kind === "break" ? "before" : "of"} ${extent}${hit}`;
  }

  private get name(): string {
    const task = taskOf(this.stop);
    return task < 0 ? this.stop.text : this.store.replayOf(0).inWords(task);
  }

  /** Select the next of its tasks after the position, or the first one. */
  private select(): void {
    const { replay, state } = this.store;
    const before = stopsBefore(this.stop, replay);
    const places = before.map((task) => replay.place[task]).sort((one, other) => one - other);
    const next = places.find((place) => place > state.t) ?? places[0];
    const task = replay.running(next);
    this.store.update({ selected: task < 0 ? before[0] : task });
  }
}

function nameOf(kind: StopPoint["kind"]): string {
  return kind === "break" ? "breakpoint" : "watchpoint";
}
