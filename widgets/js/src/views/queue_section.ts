/** A ready queue: the running task, why it was picked, and the next tasks. With several queues, that of one device. */

import { el } from "../dom.ts";
import { deviceBusy, deviceQueue, type DeviceQueue, heldUp, shownRows } from "../model/queues.ts";
import type { Times } from "../model/task_times.ts";
import type { Store } from "../store.ts";
import { grouped, nanoseconds, size } from "../format.ts";
import type { Stage } from "../view_types.ts";
import { glyph, icon } from "./icons.ts";
import { QueueList, type Ready } from "./queue_list.ts";
import { named, ROW_HEIGHT, titled } from "./queue_row.ts";
import { showRunning } from "./queue_running.ts";

/** Maximum number of rows of a single queue, and of each of several. */
const MOST = 60;
const MOST_EACH = 2;
/**
 * Number of ready tasks below which later tasks are also listed; the maximum number of rows, and the number of rows for
 * which the queue requests space.
 */
const FEW = 4;
const ROWS = 14;
const ASKED = 7;
/** Height of the heading between the two lists, as in the style sheet, pixels. */
const HEAD_HEIGHT = 24;

/** Heading of the ready tasks. */
const NEXT = "next, in this order";

/** The elements of a queue, common to one and to several queues. */
class Parts {
  readonly now = el("button", { class: "now", title: "Show the running task" });
  readonly header = el("div", { class: "qh" }, ...["", "waits", "runs"].map((title) => el("span", {}, title)));
  readonly list: QueueList;
  private readonly reason = el("span");
  readonly why = el("div", { class: "why" }, icon("why", 14), this.reason);

  constructor(private readonly stage: Stage) {
    this.list = new QueueList(stage, this.now);
    this.now.addEventListener("click", () => stage.store.update({ selected: null }));
    this.head(NEXT);
  }

  mark(): void {
    this.list.mark(this.stage.store.state.hoveredTask);
  }

  /** Show a heading above the rows. */
  head(title: string): void {
    this.header.firstElementChild!.textContent = title;
  }

  say(reason: string): void {
    this.why.hidden = !reason;
    if (this.reason.textContent !== reason) this.reason.textContent = reason;
  }
}

/** The queue of a graph with a single queue. */
export class OneQueue {
  readonly element = el("div", { class: "queue-of" });
  private readonly parts: Parts;
  private readonly then = el("div", { class: "then" });
  private readonly thenHead = el("div", { class: "then-head" });
  private rows: HTMLElement[] = [];
  private readonly resize = new ResizeObserver(() => this.fit());
  private foreseen = "";

  constructor(private readonly stage: Stage) {
    const { now, why, header, list } = (this.parts = new Parts(stage));
    this.element.append(now, why, header, list.element, this.then);
    this.then.addEventListener("click", (event) => {
      const row = (event.target as HTMLElement).closest<HTMLElement>("[data-later]");
      if (row) stage.store.select(Number(row.dataset.later));
    });
    this.resize.observe(this.element);
  }

  dispose(): void {
    this.resize.disconnect();
  }

  mark(): void {
    this.parts.mark();
  }

  show(): void {
    const { store } = this.stage;
    const { state, replay } = store;
    const { now, list } = this.parts;
    const queue = replay.queue(state.t, MOST);
    const ready = Math.max(0, replay.queueLengths[state.t] - 1);
    showRunning(now, store, store.running);
    this.parts.say(replay.reason(state.t));
    list.show(queue.map((task, index): Ready => [task, index]), ready - queue.length);
    const later = ready < FEW ? this.foreseeable(ROWS - ready) : [];
    // "nothing else is ready" is already said by the reason for the running task, or by the end.
    const isOver = store.running < 0;
    list.element.hidden = isOver || (!ready && later.length > 0);
    this.parts.header.hidden = isOver;
    const then = later.every((task) => replay.place[task] < store.reached) ? "then" : "then, as predicted";
    this.thenHead.textContent = then;
    this.parts.head(list.element.hidden ? then : NEXT);
    this.foresee(later, ready > 0);
  }

  /** Return the next tasks that are not ready yet. */
  private foreseeable(count: number): number[] {
    const { state, replay } = this.stage.store;
    const { order } = replay.schedule;
    const tasks: number[] = [];
    for (let place = state.t + 1; place < order.length && tasks.length < count; place++) {
      if (replay.readyAt[order[place]] > state.t) tasks.push(order[place]);
    }
    return tasks;
  }

  private foresee(tasks: readonly number[], hasHead: boolean): void {
    const { store } = this.stage;
    const key = [store.state.tab, store.state.selected, hasHead, ...tasks].join();
    if (key === this.foreseen) return;
    this.foreseen = key;
    this.rows = tasks.map((task) => laterRow(store, task));
    this.then.replaceChildren(...(tasks.length && hasHead ? [this.thenHead] : []), ...this.rows);
  }

  /**
   * Show as many predicted rows as fit; none is cut, and no heading remains alone. Return the total height, pixels; 0
   * if not visible.
   */
  fit(): number {
    const { header, list } = this.parts;
    const isListed = !list.element.hidden;
    const rows = (isListed ? list.element.children.length : 0) + this.then.children.length;
    const below = header.offsetTop && header.offsetTop + header.offsetHeight;
    const top = isListed ? list.element.offsetTop + list.element.offsetHeight : below;
    const room = this.element.clientHeight - top - (this.thenHead.isConnected ? HEAD_HEIGHT : 0);
    this.rows.forEach((row, at) => (row.hidden = (at + 1) * ROW_HEIGHT > room));
    this.thenHead.hidden = room < ROW_HEIGHT;
    header.style.visibility = isListed || !this.rows.length || room >= ROW_HEIGHT ? "" : "hidden";
    return below && below + Math.min(rows, Math.max(list.element.children.length, ASKED)) * ROW_HEIGHT;
  }
}

function laterRow(store: Store, task: number): HTMLElement {
  const [title, where] = titled(store.graph, task);
  const row = el(
    "button",
    { class: "row later", "data-later": String(task), title: `${title}\n${where}`.slice(0, 600) },
    glyph("waiting", 12),
    named(title, where),
    el("span", { class: "b" }, size(store.graph.bufferBytes[task])),
    el("span", { class: "k" }, store.replay.nth(task)),
  );
  row.setAttribute("aria-pressed", String(store.state.selected === task));
  return row;
}

/** Task times, and the share of them during which a device is busy. */
export interface LaneClock {
  times: Times;
  busy: number;
}

/** The queue of one device among several. */
export class OneOfSeveral {
  readonly element: HTMLElement;
  private readonly parts: Parts;
  private readonly still = el("div", { class: "now still" });
  private readonly name = el("button", { class: "device" });
  private readonly says = el("span", { class: "sub" });
  private readonly step = el("button", { class: "ib" }, icon("step", 14));
  private queue: DeviceQueue | null = null;
  private clock: LaneClock | null = null;

  /** `opened` is called when the user opens this queue. */
  constructor(
    private readonly stage: Stage,
    readonly device: number,
    name: string,
    opened: () => void,
  ) {
    const { now, why, header, list } = (this.parts = new Parts(stage));
    this.name.textContent = name;
    this.step.title = `Step ${name} (→ in its queue)`;
    this.step.setAttribute("aria-label", `step ${name}`);
    const head = el("div", { class: "queue-head" }, this.name, this.says, this.step);
    this.element = el("div", { class: "queue-of", role: "group", "aria-label": `queue of ${name}`, "data-device": name });
    this.element.append(head, now, this.still, why, header, list.element);
    this.name.addEventListener("click", opened);
    this.step.addEventListener("click", () => this.go());
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowRight" || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      this.go();
    });
  }

  mark(): void {
    this.parts.mark();
  }

  /** Return the queue at the position. */
  look(): DeviceQueue {
    const { replay, state } = this.stage.store;
    return (this.queue = deviceQueue(replay, this.device, state.t, MOST));
  }

  /**
   * Show the queue. `others`: the queues of the other devices; `open`: with its rows, else as one line; `clock`: null
   * if times are unknown.
   */
  show(queue: DeviceQueue, others: readonly DeviceQueue[], open: boolean, clock: LaneClock | null): void {
    this.clock = clock;
    const { store } = this.stage;
    const { replay, state } = store;
    const { now, header, list } = this.parts;
    const rests = queue.running < 0;
    this.says.textContent = this.says.title = this.share(queue);
    this.name.setAttribute("aria-expanded", String(open));
    this.element.classList.toggle("runs", !rests);
    this.step.disabled = rests && !queue.count;
    now.hidden = rests || !open;
    this.still.hidden = !rests || !open;
    list.element.hidden = !open || (rests && !queue.count);
    if (!rests) showRunning(now, store, queue.running);
    this.still.replaceChildren(...this.restWords(queue));
    const held = heldUp(replay, state.t, queue, others);
    this.parts.say(!open ? "" : rests ? held : held || replay.reason(state.t, queue.count + 1));
    const rows = open ? shownRows(queue, others, MOST_EACH) : [];
    header.hidden = !rows.length;
    list.show(rows, queue.count - rows.length);
  }

  /** Describe a device without a running task. */
  private restWords(queue: DeviceQueue): HTMLElement[] {
    const { replay, graph, state } = this.stage.store;
    const line = (text: string) => el("span", { class: "r2" }, text);
    const title = (text: string) => el("span", { class: "r1" }, text);
    const worksOn = this.clock && deviceBusy(replay, queue.device, state.t, this.clock.times);
    if (worksOn) return [title(`runs ${replay.nth(worksOn.task)}, ${graph.titles[worksOn.task]}`), line(`for ${nanoseconds(worksOn.left)} more`)];
    if (queue.next < 0) return [title("has run all of its tasks")];
    const next = `${replay.nth(queue.next)}, ${graph.titles[queue.next]}`;
    if (queue.count) return [title("has ready tasks"), line(`next is the ${next}`)];
    const start = this.clock?.times.start;
    const left = start ? start[replay.place[queue.next]] - start[state.t] : 0;
    // While a session is stepped, all devices stand still until the user continues.
    return [title(this.stage.store.isLive ? "has no ready task" : "idle"), line(`until ${next}${left > 0 ? `, in ${nanoseconds(left)}` : ""}`)];
  }

  /** Return the busy share of the time, or the progress if times are unknown. */
  private share({ ran, all, count }: DeviceQueue): string {
    const { clock } = this;
    if (!clock) return `${grouped(ran)} of ${grouped(all)} ran · ${grouped(count)} ready`;
    return `busy ${Math.round(100 * clock.busy)} % of ${nanoseconds(clock.times.total)}`;
  }

  /** Run its next task; if that is impossible, show the moment after it has run. */
  private go(): void {
    const { store } = this.stage;
    const { queue } = this;
    if (!queue || this.step.disabled) return;
    store.update({ playing: false });
    if (isAtFront(store)) return store.link?.ask({ kind: "step", device: queue.name });
    const task = queue.running >= 0 ? queue.running : queue.next;
    if (task >= 0) store.go(Math.min(store.replay.place[task] + 1, store.isLive ? store.state.front : store.replay.length));
  }
}

/** Return whether the user can choose the ready task that runs next. */
export function canSteer(store: Store): boolean {
  return store.document.engine === "direct" && isAtFront(store);
}

/**
 * Return whether a live session is stopped at the shown position. Any device can be stepped there, also with PyTorch's
 * engine.
 */
function isAtFront({ state, isLive }: Store): boolean {
  return isLive && state.status === "stopped" && state.t === state.front;
}
