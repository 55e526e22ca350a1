/** Texts of the timeline: phases, devices, the peak's sentence, and the names of lifetimes. */

import { rowTop } from "../charts/lifetimes.ts";
import type { Stack } from "../charts/memory_stack.ts";
import type { LifetimeBars, Picture } from "../charts/timeline_picture.ts";
import { smallType } from "../canvas.ts";
import { el } from "../dom.ts";
import { WHOLE, type PlacedPhase } from "../model/axis.ts";
import type { Lane } from "../model/device_lanes.ts";
import { levelsOfMemory, type MemoryLevels } from "../model/memory.ts";
import { pathsOf } from "../model/short_paths.ts";
import type { Changed } from "../store.ts";
import { grouped, nanoseconds, nth, size } from "../format.ts";
import type { Stage } from "../view_types.ts";
import { goToPeak } from "./keyboard.ts";
import { basisWords, chartWords, type Legend, peakWords } from "./memory_legend.ts";
import { pathEnd } from "./text_elements.ts";

/** Space beside a name in a phase's bar, pixels. */
const PADDING = 12;
/** Distance from the peak's ring to its sentence. */
const BESIDE = 9;
/** Minimum width of the sentence. */
const LEAST_SENTENCE = 260;
/** Space around and between a lifetime's name and path, as in the style sheet. */
const NAME_MARGIN = 27;
/** Minimum share of the gutter for a path. */
const PATH_SHARE = 0.6;
/** Width from which on the right gutter shows whole numbers. */
const ROOMY = 100;

const measured = document.createElement("canvas").getContext("2d")!;

export class TimelineLabels {
  /** Sentence about the memory chart. */
  words = "";
  readonly elements: HTMLElement[];
  /** Number of lines of the peak's sentence; the chart is below them. */
  peakLines = 1;
  /** Reason why there is no chart, shown in its place. */
  readonly note: HTMLElement;
  private readonly reason = el("p");
  private readonly phases = el("div", { class: "phases" });
  private readonly heading = el("h3", {}, "Memory");
  private readonly lanes = el("div", { class: "lanes" });
  private readonly peak = el("p", { class: "peak" });
  private readonly toPeak = el("button", { class: "go" });
  private readonly lives = el("ul", { class: "lives", "aria-label": "lifetimes of storages, most bytes × time first" });
  private readonly more = el("span", { class: "more" });
  private readonly memory: HTMLElement;
  private readonly lifetimes: HTMLButtonElement;
  private readonly axes: Record<"task" | "clock", HTMLButtonElement>;
  private readonly whole: HTMLButtonElement;
  private readonly scale: HTMLButtonElement;
  private readonly held = el("span", { class: "held" });
  private readonly unit = el("span", { class: "unit" });
  private readonly foot: HTMLElement;
  private readonly lifetimesHeading: HTMLElement;

  constructor(
    private readonly stage: Stage,
    legend: Legend,
    toggleLifetimes: () => void,
  ) {
    const { store } = stage;
    const button = (text: string, title: string, act: () => void) => {
      const made = el("button", { class: "sm", title }, text);
      made.addEventListener("click", act);
      return made;
    };
    this.axes = {
      task: button("task", "All tasks are equally wide (C)", () => store.update({ axis: "task", zoom: WHOLE })),
      clock: button("clock", "Tasks are as wide as their durations (C)", () => store.update({ axis: "clock", zoom: WHOLE })),
    };
    this.whole = button("whole", "Show the whole timeline (0)", () => store.update({ zoom: WHOLE }));
    this.scale = button("", "Memory scale: highest of all policies, or of this one (Y)", () =>
      store.update({ ownScale: !store.state.ownScale }),
    );
    this.scale.classList.add("scale");
    this.lifetimes = el("button", { class: "fold", title: "Lifetimes: show, hide" }, "Lifetimes");
    this.lifetimes.addEventListener("click", toggleLifetimes);
    this.toPeak.addEventListener("click", () => goToPeak(stage));
    this.memory = el("div", { class: "memory" }, this.heading, legend.total, legend.element);
    const axes = el("div", { class: "tabs axes", role: "group", "aria-label": "axis" }, this.axes.task, this.axes.clock);
    const top = el("div", { class: "top" }, el("h3", {}, "Timeline"), this.whole, axes);
    this.note = el("div", { class: "note" }, this.reason);
    this.foot = el("div", { class: "unit-row" }, this.unit, this.held);
    this.lifetimesHeading = el("div", { class: "heading" }, el("h3", {}, this.lifetimes), this.more);
    this.elements = [
      top, this.phases, this.lanes, this.memory, this.peak, this.note, this.scale, this.lifetimesHeading, this.lives,
      this.foot,
    ];
  }

  update(changed: Changed): void {
    const { state } = this.stage.store;
    if (changed.has("axis") || changed.has("revision")) {
      for (const [kind, button] of Object.entries(this.axes)) button.setAttribute("aria-pressed", String(state.axis === kind));
    }
    if (changed.has("zoom")) this.whole.hidden = state.zoom === WHOLE;
    if (changed.has("history")) this.showHistory();
  }

  /** Place all texts at the picture's rows. */
  place(picture: Picture, stack: Stack | null): void {
    const { axis, bands, lanes, times } = picture;
    const { store } = this.stage;
    measured.font = smallType(400);
    this.phases.replaceChildren(...axis.phases.flatMap((phase) => phaseOf(phase, axis.left, axis.right)));
    this.lanes.replaceChildren(...lanes.flatMap((lane, number) => this.laneOf(picture, lane, number)));
    this.axes.clock.disabled = !times;
    this.axes.clock.title = times ? "Tasks are as wide as their durations (C)" : "The times of its tasks were not recorded";
    this.unit.textContent = axis.kind === "clock" ? "clock" : "task";
    const several = lanes.some((lane) => lane.levels.length);
    this.heading.textContent = several ? `Memory, ${store.replay.schedule.memory?.device ?? ""}` : "Memory";
    at(this.memory, bands.memory.top);
    at(this.lifetimesHeading, bands.lifetimes.top);
    at(this.foot, bands.ruler);
    at(this.scale, bands.memory.top + 1);
    this.scale.hidden = !picture.stack?.hasScales;
    this.scale.textContent = store.state.ownScale ? "this policy" : "all policies";
    this.scale.setAttribute("aria-pressed", String(store.state.ownScale));
    this.showPeak(picture, stack);
    this.showLifetimes(picture);
  }

  private laneOf(picture: Picture, lane: Lane, number: number): HTMLElement[] {
    const { bands, axis, times } = picture;
    const { top } = bands.lanes[number];
    const queue = bands.hasQueues ? [el("span", {}, `queue, longest ${grouped(lane.longest)}`)] : [];
    const name = lane.levels.length ? `${lane.name}, peak ${size(lane.peak)}` : lane.name;
    const made = [el("div", { class: "lane", "data-device": lane.name }, el("b", {}, name), ...queue)];
    const busy = busyWords(lane);
    if (busy) made.push(el("div", { class: "busy", "data-busy": lane.name }, busy));
    if (axis.kind === "clock" && times) {
      const { left, right } = axis.backward;
      const x = (ns: number) => left + ((right - left) * ns) / times.total;
      for (const { device, from, to, text } of times.still) {
        if (device !== lane.device) continue;
        const said = el("div", { class: "stands", title: text }, el("span", {}, text));
        within(said, Math.max(axis.left, x(from)), Math.min(axis.right, x(to)));
        made.push(said);
      }
    }
    for (const each of made) at(each, top);
    return made;
  }

  /** Show the peak and the basis of the numbers, or why there are none. */
  private showPeak({ axis, bands, width, stack: paths }: Picture, stack: Stack | null): void {
    const { store } = this.stage;
    const { peak, note } = this;
    this.peakLines = 1;
    const { schedule } = store.replay;
    peak.hidden = !stack;
    this.reason.textContent = stack ? "" : sentence(schedule.memory_note || "The memory of this order is unknown");
    if (!stack || !paths) {
      at(note, bands.chart.top);
      note.style.height = `${bands.lifetimes.top - bands.chart.top}px`;
      within(note, axis.left, axis.right);
      this.words = this.reason.textContent;
      return;
    }
    peak.style.width = ""; // natural width
    peak.classList.remove("two");
    const [first, second] = peakWords(stack.shown, stack.forward, (place) => store.graph.titles[schedule.order[place]]);
    const { said, reasons } = basisWords(stack.shown, schedule.curves !== undefined);
    peak.replaceChildren(el("span", {}, this.toPeak, second, el("span", { class: "sub" }, ` · ${said}`)));
    this.toPeak.textContent = first;
    this.toPeak.title = "To the memory peak (P)";
    peak.title = [first + second, said, reasons].filter(Boolean).join("\n");
    at(peak, bands.memory.top + 1);
    // the button may be wider than the gutter
    const end = Math.min(axis.right, width - this.scale.offsetWidth - PADDING);
    const natural = peak.scrollWidth + 2;
    this.peakLines = natural > end - axis.left ? 2 : 1;
    peak.classList.toggle("two", this.peakLines > 1);
    const wide = Math.min(end - axis.left, Math.max(LEAST_SENTENCE, natural));
    const ring = Math.max(axis.left, Math.min(axis.right, axis.x(stack.shown.peak.time)));
    within(peak, Math.max(axis.left, Math.min(ring + BESIDE, end - wide)), end);
    this.words = chartWords(stack.shown, first + second, stack.curves);
  }

  private showLifetimes(picture: Picture): void {
    const { bands, lifetimes, axis, width } = picture;
    const { memory } = this.stage.store;
    const levels = memory && levelsOfMemory(memory);
    const shown = lifetimes.reduce((sum, { row }) => sum + row.count, 0);
    const others = (levels?.storages ?? 0) - shown;
    this.lifetimesHeading.hidden = !levels;
    this.lifetimes.setAttribute("aria-expanded", String(bands.lifetimes.rows > 0));
    this.more.textContent = others > 0 && shown ? `+${grouped(others)} more` : "";
    const paths = pathsOf(lifetimes.map(({ row }) => row));
    this.lives.replaceChildren(
      ...lifetimes.map((each, number) => {
        const item = lifeOf(each, paths[number], levels!, axis.left, width - axis.right);
        at(item, rowTop(picture, number));
        return item;
      }),
    );
  }

  /** Show the memory that the undo history holds. */
  private showHistory(): void {
    const { history } = this.stage.store.state;
    this.held.hidden = !history;
    this.unit.hidden = history !== null;
    if (!history) return;
    const { bytes, gradient_bytes: gradients, saved_bytes: saved, reach } = history;
    this.held.textContent = `history holds ${size(bytes)}`;
    const back = reach ? `the ${nth(reach + 1)} task` : "the start";
    this.held.title = `Memory held for undo, back to ${back}\ngradients: ${size(gradients)}\nsaved tensors: ${size(saved)}`;
  }
}

/** Return `busy 54 %`; "" without recorded times. */
export function busyWords({ busy }: Lane): string {
  return busy === null ? "" : `busy ${Math.round(100 * busy)} %`;
}

function at(element: HTMLElement, top: number): void {
  element.style.top = `${top}px`;
}

function within(element: HTMLElement, left: number, right: number): void {
  element.style.left = `${left}px`;
  element.style.width = `${Math.max(0, right - left)}px`;
}

/** Return a phase's bar with as much of its name and time as fits. */
function phaseOf({ name, elapsed_ns, left, right }: PlacedPhase, from: number, to: number): HTMLElement[] {
  const [start, end] = [Math.max(left, from), Math.min(right, to)];
  if (end - start < 1) return [];
  const time = elapsed_ns ? nanoseconds(elapsed_ns) : "";
  const room = end - start - PADDING;
  const fits = (text: string) => measured.measureText(text).width <= room;
  const made = el("div", { class: "phase", "data-phase": name, title: `${name} ${time}\nDouble click: zoom to it, or back` });
  made.append(el("b", { class: fits(name) ? "" : "sr" }, name));
  if (time) made.append(el("span", { class: fits(`${name}  ${time}`) ? "" : "sr" }, ` ${time}`));
  within(made, start, end);
  return [made];
}

function lifeOf({ row, bars }: LifetimeBars, paths: string[], levels: MemoryLevels, left: number, right: number): HTMLElement {
  const room = left - NAME_MARGIN - measured.measureText(row.name).width;
  const where = pathEnd(paths.find((each) => measured.measureText(each).width <= room) ?? paths[paths.length - 1], "m");
  where.style.maxWidth = `${Math.max(room, PATH_SHARE * left)}px`;
  const many = row.count > 1 ? manyOf(row.count, right) + size(row.nbytes) : size(row.nbytes);
  const lives = row.storages.map((storage) => levels.life(storage));
  const born = Math.min(...lives.map((life) => life.born));
  const freed = lives.map((life) => life.freed);
  const last = freed.includes(null) ? null : Math.max(...(freed as number[]));
  const when = (place: number) => (place < levels.places ? `in the ${nth(place + 1)} task` : "after the last task");
  const isOlder = bars.every(({ storage }) => levels.born(storage) === null);
  const from = born >= 0 ? `allocated ${when(born)}` : isOlder ? "allocated earlier" : "allocated in the forward";
  const to = last === null ? "alive at the end" : last < 0 ? "freed in the forward" : `freed ${when(last)}`;
  const item = el(
    "li",
    { "data-count": String(row.count), "data-bytes": String(row.nbytes), "data-storage": String(bars[0].storage) },
    el("span", { class: "name" }, el("span", { class: "n" }, row.name), where),
    el("span", { class: "many" }, many),
    el("span", { class: "sr" }, `, ${from}, ${to}`),
  );
  item.style.setProperty("--left", `${left}px`);
  item.style.setProperty("--right", `${right}px`);
  return item;
}

/** Return `12 × `, `1,500 × `; if space is short `12×` and `1.5k×`. */
function manyOf(count: number, room: number): string {
  if (room >= ROOMY) return `${grouped(count)} × `;
  return count < 1000 ? `${count}×` : `${+(count / 1000).toFixed(1)}k×`;
}

function sentence(text: string): string {
  const first = `${text[0].toUpperCase()}${text.slice(1)}`;
  return /[.!?…]$/.test(first) ? first : `${first}.`;
}
