/** A figure with axes: tooltips by pointer and keys, a legend, and zoom along the horizontal axes. */

import { lastUpTo } from "../binary_search.ts";
import { el, svg } from "../dom.ts";
import { area, stacked } from "./areas.ts";
import { type PlotData, type HoverData, linesOf, numberText, numbers } from "./data.ts";
import { type Item, distance, itemsOf, hoverText } from "./items.ts";
import type { Line, Tip } from "./tooltip.ts";
import { Window } from "./window.ts";

const NEAR = 30; // maximum distance between the pointer and an item, pixels
const DRAG = 5; // pixels; shorter movements are clicks
const STEP = 10; // points per key press with Shift

export class Plot {
  private room: HTMLElement;
  private plot: SVGSVGElement;
  private windows = new Map<string, Window>();
  private groups: Element[];
  private items: Item[][];
  private hidden = new Set<number>();
  private chosen: Item | null = null;
  private mark: Element | null = null;
  private drag: { window: Window; x: number; from: number; to: number; pans: boolean; box?: Element } | null = null;
  private reset = el("button", { type: "button", class: "reset" }, "show all");

  constructor(
    private root: HTMLElement,
    private figure: PlotData,
    private data: HoverData,
    private tip: Tip,
  ) {
    this.room = root.querySelector<HTMLElement>(".room")!;
    this.plot = root.querySelector<SVGSVGElement>(".plot")!;
    for (const outer of root.querySelectorAll<SVGSVGElement>(".window")) {
      const name = outer.dataset.axis!;
      this.windows.set(name, new Window(outer, figure.axes[name], this.plot));
    }
    this.groups = figure.traces.map((_, trace) => root.querySelector(`[data-trace="${trace}"]`)!);
    this.items = itemsOf(figure, data, this.groups, this.windows);
    this.room.addEventListener("pointerdown", (event) => this.press(event));
    this.room.addEventListener("pointermove", (event) => this.move(event));
    this.room.addEventListener("pointerup", (event) => this.release(event));
    this.room.addEventListener("pointercancel", () => this.endDrag());
    this.room.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "touch") this.forget(); // lifting a finger also fires this event
    });
    this.room.addEventListener("dblclick", () => this.showAll());
    this.room.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.room.addEventListener("keydown", (event) => this.key(event));
    this.room.addEventListener("blur", () => this.forget());
    this.reset.addEventListener("click", () => {
      this.showAll();
      this.room.focus();
    });
    for (const button of root.querySelectorAll<HTMLElement>(".legend [data-traces]")) {
      button.addEventListener("click", () => this.toggle(button));
      button.addEventListener("dblclick", () => this.alone(button));
    }
  }

  private at(event: { clientX: number; clientY: number }): { window: Window; y: number } | null {
    const y = event.clientY - this.plot.getBoundingClientRect().top;
    for (const window of this.windows.values()) {
      const { left, width } = window.edges;
      if (event.clientX >= left - 4 && event.clientX <= left + width + 4) return { window, y };
    }
    return null;
  }

  private press(event: PointerEvent): void {
    const place = this.at(event);
    if (!place || event.button || place.y > Number(this.plot.dataset.bottom) + 24) return;
    const { from, to } = place.window;
    this.drag = { window: place.window, x: event.clientX, from, to, pans: event.shiftKey };
  }

  private move(event: PointerEvent): void {
    if (this.drag && Math.abs(event.clientX - this.drag.x) > DRAG) this.pull(event);
    else this.point(event);
  }

  /** Pan, or draw the range to zoom to. */
  private pull(event: PointerEvent): void {
    const { window, x, from, to, pans } = this.drag!;
    this.room.setPointerCapture(event.pointerId);
    this.forget();
    if (pans) {
      const by = ((x - event.clientX) / window.edges.width) * (to - from);
      this.show(window, from + by, to + by);
      return;
    }
    const { left, width } = window.edges;
    const [start, stop] = [x, event.clientX].sort((one, other) => one - other).map((each) => Math.max(left, Math.min(each, left + width)));
    this.drag!.box ??= window.outer.appendChild(svg("rect", { class: "chosen" }));
    const top = Number(this.plot.dataset.top);
    const sides = { x: start - left, width: stop - start, y: top, height: Number(this.plot.dataset.bottom) - top };
    for (const [name, value] of Object.entries(sides)) this.drag!.box.setAttribute(name, String(value));
  }

  private release(event: PointerEvent): void {
    const drag = this.drag;
    this.endDrag();
    if (!drag) return;
    if (Math.abs(event.clientX - drag.x) <= DRAG) this.point(event);
    else if (!drag.pans) {
      const [from, to] = [drag.x, event.clientX].map((x) => drag.window.shareAt(x)).sort((one, other) => one - other);
      this.show(drag.window, Math.max(0, from), Math.min(1, to));
    }
  }

  private endDrag(): void {
    this.drag?.box?.remove();
    this.drag = null;
  }

  private wheel(event: WheelEvent): void {
    const window = this.at(event)?.window;
    const by = event.deltaX || (event.shiftKey ? event.deltaY : 0);
    if (!window?.isZoomed || !by) return;
    event.preventDefault();
    const moved = (by / window.edges.width) * (window.to - window.from);
    this.show(window, window.from + moved, window.to + moved);
  }

  private show(window: Window, from: number, to: number): void {
    window.show(from, to);
    if ([...this.windows.values()].some((each) => each.isZoomed)) this.root.querySelector(".legend")!.append(this.reset);
    else this.reset.remove();
  }

  private showAll(): void {
    for (const window of this.windows.values()) this.show(window, 0, 1);
  }

  private seen(window: Window): Item[][] {
    return this.items.map((items, trace) =>
      this.hidden.has(trace) || this.windows.get(this.figure.traces[trace].axis) !== window ? [] : items,
    );
  }

  /** Show the tooltip of the nearest item. */
  private point(event: PointerEvent): void {
    const place = this.at(event);
    if (!place || place.y < 0) return this.forget();
    const { window, y } = place;
    const share = window.shareAt(event.clientX);
    const width = window.edges.width / (window.to - window.from);
    const seen = this.seen(window);
    if (this.figure.unified) {
      const longest = seen.reduce((most, each) => (each.length > most.length ? each : most), [] as Item[]);
      if (!longest.length || y > Number(this.plot.dataset.bottom)) return this.forget();
      this.showTip(longest[lastUpTo(longest.map((each) => each.start), share)], event.clientX, event.clientY);
      return;
    }
    let nearest: Item | null = null;
    let least = NEAR;
    for (const item of seen.flat()) {
      const far = distance(item, share, y, width);
      if (far < least) [nearest, least] = [item, far];
    }
    if (nearest) this.showTip(nearest, event.clientX, event.clientY);
    else this.forget();
  }

  /** Show the tooltip of an item, and mark it. */
  private showTip(item: Item, x: number, y: number): void {
    this.forget();
    this.chosen = item;
    const window = this.windows.get(this.figure.traces[item.trace].axis)!;
    if (item.bar) {
      this.mark = item.bar;
      item.bar.classList.add("at");
    } else if (this.figure.unified) {
      const across = `${100 * item.start}%`;
      const { top, bottom } = this.plot.dataset;
      this.mark = window.content.appendChild(svg("line", { class: "cursor", x1: across, x2: across, y1: top!, y2: bottom! }));
    } else {
      const across = `${100 * item.start}%`;
      this.mark = window.content.appendChild(svg("circle", { class: "at", cx: across, cy: item.top, r: 5, fill: "none" }));
    }
    this.tip.show(this.figure.unified ? this.all(item, window) : hoverText(this.figure, this.data, item), x, y);
  }

  /** Return the hover texts of all curves at an item of one of them. */
  private all(item: Item, window: Window): Line[] {
    const value = numbers(this.data, this.figure.traces[item.trace].x)[item.at];
    const head = this.figure.head.replace("%{x}", numberText(value)) || numberText(value) + window.axis.suffix;
    const lines: Line[] = [{ text: head }];
    for (const [trace, items] of this.seen(window).entries()) {
      if (!items.length) continue;
      const at = lastUpTo(items.map((each) => each.start), item.start);
      const traceData = this.figure.traces[trace];
      lines.push(...linesOf(this.data, traceData, at).map((text) => ({ text, colour: traceData.colour || "transparent" })));
    }
    return lines;
  }

  private forget(): void {
    this.tip.hide();
    this.chosen = null;
    if (this.mark?.classList.contains("at") && this.mark.tagName === "rect") this.mark.classList.remove("at");
    else this.mark?.remove();
    this.mark = null;
  }

  private key(event: KeyboardEvent): void {
    if (event.target !== this.room || event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    if (key === "Escape") this.forget();
    else if (key === "0") this.showAll();
    else if (key === "+" || key === "=" || key === "-") this.zoom(key === "-" ? 2 : 0.5);
    else if (key === "ArrowLeft" || key === "ArrowRight") this.along((key === "ArrowLeft" ? -1 : 1) * (event.shiftKey ? STEP : 1));
    else if (key === "ArrowUp" || key === "ArrowDown") this.over(key === "ArrowUp" ? -1 : 1);
    else return;
    event.preventDefault();
  }

  /** Zoom around the selected item, or the middle. */
  private zoom(factor: number): void {
    const axis = this.chosen ? this.figure.traces[this.chosen.trace].axis : [...this.windows.keys()][0];
    const window = this.windows.get(axis)!;
    const middle = this.chosen?.start ?? (window.from + window.to) / 2;
    const half = ((window.to - window.from) * factor) / 2;
    this.show(window, middle - half, middle + half);
  }

  private along(step: number): void {
    const chosen = this.chosen;
    const items = chosen ? this.items[chosen.trace] : (this.visible()[0] ?? []);
    const at = chosen ? Math.max(0, Math.min(items.indexOf(chosen) + step, items.length - 1)) : 0;
    if (items.length) this.go(items[at]);
  }

  /** Select the nearest item of the previous or next trace. */
  private over(step: number): void {
    const chosen = this.chosen;
    const visible = this.visible();
    if (!chosen || this.figure.unified) return this.along(0);
    const rows = visible.findIndex((each) => each.includes(chosen));
    const next = visible[rows + step];
    if (!next) return;
    this.go(next.reduce((best, each) => (Math.abs(each.start - chosen.start) < Math.abs(best.start - chosen.start) ? each : best)));
  }

  private visible(): Item[][] {
    return this.items.filter((items, trace) => items.length && !this.hidden.has(trace));
  }

  private go(item: Item): void {
    const window = this.windows.get(this.figure.traces[item.trace].axis)!;
    if (item.start < window.from || item.start > window.to) {
      const half = (window.to - window.from) / 2;
      this.show(window, item.start - half, item.start + half);
    }
    const { top } = this.plot.getBoundingClientRect();
    const y = this.figure.unified ? Number(this.plot.dataset.top) : item.bottom;
    this.showTip(item, window.screenAt(item.bar ? (item.start + item.stop) / 2 : item.start), top + y);
  }

  private toggle(button: HTMLElement): void {
    this.hide(button, button.getAttribute("aria-pressed") === "true");
    this.restack();
  }

  /** Hide all other curves, or show all if the others are hidden already. */
  private alone(button: HTMLElement): void {
    const buttons = [...this.root.querySelectorAll<HTMLElement>(".legend [data-traces]")];
    const others = buttons.filter((each) => each !== button);
    const isAlone = others.every((each) => each.getAttribute("aria-pressed") === "false");
    for (const each of others) this.hide(each, !isAlone);
    this.hide(button, false);
    this.restack();
  }

  private hide(button: HTMLElement, isHidden: boolean): void {
    button.setAttribute("aria-pressed", String(!isHidden));
    for (const trace of button.dataset.traces!.split(" ").map(Number)) {
      if (isHidden) this.hidden.add(trace);
      else this.hidden.delete(trace);
      this.groups[trace].classList.toggle("off", isHidden);
    }
    this.forget();
  }

  private restack(): void {
    const curves = this.figure.traces.flatMap((trace, number) => (trace.stack === undefined ? [] : [number]));
    if (!curves.length) return;
    const heights = curves.map((trace) => numbers(this.data, this.figure.traces[trace].stack));
    const places = stacked(heights, curves.map((trace) => this.hidden.has(trace)), 10 * Number(this.plot.dataset.bottom));
    for (const [place, trace] of curves.entries()) {
      const path = this.groups[trace].querySelector("path")!;
      const { width } = path.ownerSVGElement!.viewBox.baseVal;
      const xs = this.items[trace].map(({ start }) => Math.round(start * width));
      path.setAttribute("d", area(xs, places[place].tops, places[place].floors));
    }
  }
}
