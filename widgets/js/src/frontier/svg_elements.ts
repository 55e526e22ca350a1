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
