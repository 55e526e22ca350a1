/** Rows of the ready queue. They slide when the queue changes, and arrow keys move through them. */

import { el } from "../dom.ts";
import type { Store } from "../store.ts";
import type { Stage } from "../view_types.ts";
import { isSwift } from "./throttled_view.ts";
import { arrive, fly, type Place, placeIn, slide } from "./queue_motion.ts";
import { QueueRow, ROW_HEIGHT } from "./queue_row.ts";
import { grouped } from "../format.ts";

/** Minimum time between two animated changes, milliseconds; faster ones come from scrubbing or a held key. */
const UNHURRIED = 100;
/** Maximum number of tasks between two animated states; larger changes cannot be followed. */
const NEAR = 3;

/** A task, and its place in its queue. */
export type Ready = readonly [task: number, index: number];

export class QueueList {
  readonly element = el("ol", { class: "list", "aria-label": "ready tasks, in the order in which they run" });
  private readonly rows = new Map<number, QueueRow>();
  private readonly end = el("li", { class: "empty" });
  private readonly store: Store;
  private last = { t: -1, tab: -1, at: 0 };

  /** `target` is the block of the running task, to which rows fly. */
  constructor(
    private readonly stage: Stage,
    private readonly target: HTMLElement,
  ) {
    this.store = stage.store;
    this.element.addEventListener("keydown", (event) => this.walk(event));
    this.element.addEventListener("click", (event) => this.choose(event));
    this.element.addEventListener("pointerover", (event) => this.hover(taskAt(event.target)));
    this.element.addEventListener("pointerleave", () => this.hover(null));
  }

  /** Show these tasks; `more` further ones are ready. */
  show(queue: readonly Ready[], more: number): void {
    const { state, running } = this.store;
    const moves = this.canMove();
    const hadFocus = this.focused !== undefined;
    const leaving = moves ? this.rows.get(running)?.element : undefined;
    const from: Place | undefined = leaving && placeIn(leaving, this.target.offsetParent);
    this.removeAllBut(new Set(queue.map(([task]) => task)));
    queue.forEach(([task, index], at) => this.showRow(task, index, at, moves));
    this.showEnd(more, queue.length);
    if (leaving && from) fly(leaving, from, this.target);
    const first = queue[0]?.[0];
    if (hadFocus && !this.focused) this.refocus(first);
    this.rove(first);
    this.last = { t: state.t, tab: state.tab, at: performance.now() };
  }

  /** Mark the row of the hovered task. */
  mark(hovered: number | null): void {
    for (const [task, row] of this.rows) row.element.classList.toggle("hot", task === hovered);
  }

  private get focused(): QueueRow | undefined {
    if (!this.element.matches(":focus-within")) return undefined;
    return [...this.rows.values()].find((row) => row.hasFocus);
  }

  /** Return whether rows slide, which needs a pace that the eye can follow. */
  private canMove(): boolean {
    const { t, tab } = this.store.state;
    if (this.stage.still || isSwift(this.stage) || this.last.tab !== tab || this.last.t === t) return false;
    return Math.abs(t - this.last.t) <= NEAR && performance.now() - this.last.at > UNHURRIED;
  }

  private removeAllBut(kept: ReadonlySet<number>): void {
    for (const [task, row] of this.rows) {
      if (kept.has(task)) continue;
      row.element.remove();
      this.rows.delete(task);
    }
  }

  /** Show a row at index `at` of the shown rows. */
  private showRow(task: number, index: number, at: number, moves: boolean): void {
    let row = this.rows.get(task);
    const before = row?.at;
    if (!row) this.rows.set(task, (row = new QueueRow(this.store, task)));
    row.show(index, at, this.store.state.selected === task);
    const { element } = row;
    const there = this.element.children[at] ?? null;
    if (there !== element) this.element.insertBefore(element, there);
    if (!moves || at * ROW_HEIGHT > this.element.scrollTop + this.element.clientHeight) return;
    if (before === undefined) arrive(element);
    else if (before !== at) slide(element, (before - at) * ROW_HEIGHT);
  }

  private showEnd(more: number, shown: number): void {
    if (more) this.end.textContent = `+${grouped(more)} more`;
    else this.end.textContent = this.store.running < 0 ? "empty" : "nothing else is ready";
    if (more || !shown) this.element.append(this.end);
    else this.end.remove();
  }

  /** Keep the focus in the queue if the focused row was removed. */
  private refocus(first: number | undefined): void {
    const row = first === undefined ? undefined : this.rows.get(first);
    if (row) row.focus();
    else this.target.focus({ preventScroll: true });
  }

  /** Set the only row that the Tab key reaches. */
  private rove(first: number | undefined): void {
    const current = this.focused ?? (first === undefined ? undefined : this.rows.get(first));
    for (const row of this.rows.values()) row.tabbable = row === current;
  }

  private walk(event: KeyboardEvent): void {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const at = (this.focused?.at ?? -1) + step;
    const next = [...this.rows.values()].find((row) => row.at === at);
    if (!next) return;
    next.focus();
    next.element.scrollIntoView({ block: "nearest" });
    this.rove(undefined);
  }

  private choose(event: MouseEvent): void {
    const task = taskAt(event.target);
    if (task === null) return;
    if ((event.target as HTMLElement).closest(".pop")) this.store.link?.stepTask(task);
    else this.store.select(task);
  }

  private hover(task: number | null): void {
    this.store.update({ hoveredTask: task });
  }
}

function taskAt(target: EventTarget | null): number | null {
  const task = (target as HTMLElement | null)?.closest<HTMLElement>("li")?.dataset.task;
  return task === undefined ? null : Number(task);
}
