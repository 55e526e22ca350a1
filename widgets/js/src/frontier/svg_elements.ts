/** What both charts have in common: elements put where they belong, and the room around a plot. */

import { el, svg } from "../dom.ts";

export const PANEL = 250;
export const TOP = 12;
export const BOTTOM = 30;

/** An HTML element at the end of another one. */
export function put<K extends keyof HTMLElementTagNameMap>(
  parent: Element,
  tag: K,
  attributes: Record<string, string | undefined> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const made = el(tag, attributes, ...children);
  parent.append(made);
  return made;
}

/** An SVG element at the end of another one. */
export function draw<K extends keyof SVGElementTagNameMap>(
  parent: Element,
  tag: K,
  attributes: Record<string, string | number>,
  ...children: (Node | string)[]
): SVGElementTagNameMap[K] {
  const made = svg(tag, attributes, ...children);
  parent.append(made);
  return made;
}

/** Round sizes from 0 to the highest, some four of them. */
export function ticks(highest: number): number[] {
  const step = Math.max(1, 2 ** Math.ceil(Math.log2(highest / 5)));
  const found: number[] = [];
  for (let at = 0; at <= highest; at += step) found.push(at);
  return found;
}
