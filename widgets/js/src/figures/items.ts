/** Points and bars of a plot that have a hover text. */

import { type PlotData, type HoverData, linesOf, numbers } from "./data.ts";
import type { Line } from "./tooltip.ts";
import type { Window } from "./window.ts";

/** A point or bar: `start` and `stop` are shares of the axis, `top` and `bottom` are pixels. */
export interface Item {
  trace: number;
  at: number;
  start: number;
  stop: number;
  top: number;
  bottom: number;
  bar?: Element;
}

/** Return the items of each trace that has hover texts. */
export function itemsOf(figure: PlotData, data: HoverData, groups: Element[], windows: Map<string, Window>): Item[][] {
  return figure.traces.map((trace, number) => {
    if (trace.say === undefined) return [];
    if (trace.bars) return [...groups[number].querySelectorAll(":scope > rect")].map((bar, at) => barItem(bar, number, at));
    const xs = numbers(data, trace.x).map((x) => windows.get(trace.axis)!.shareOf(x));
    const ys = numbers(data, trace.y);
    return xs.map((start, at) => {
      const stop = trace.steps ? (xs[at + 1] ?? start) : start;
      return { trace: number, at, start, stop, top: ys[at] ?? 0, bottom: ys[at] ?? 0 };
    });
  });
}

function barItem(bar: Element, trace: number, at: number): Item {
  const read = (name: string) => parseFloat(bar.getAttribute(name)!);
  const [start, top] = [read("x") / 100, read("y")];
  return { trace, at, start, stop: start + read("width") / 100, top, bottom: top + read("height"), bar };
}

/** Return the distance of a position from an item, in pixels. */
export function distance(item: Item, share: number, y: number, width: number): number {
  const across = Math.max(item.start - share, share - item.stop, 0) * width;
  return Math.hypot(across, Math.max(item.top - y, y - item.bottom, 0));
}

/** Return the hover text of one item. */
export function hoverText(figure: PlotData, data: HoverData, item: Item): Line[] {
  return linesOf(data, figure.traces[item.trace], item.at).map((text) => ({ text }));
}
