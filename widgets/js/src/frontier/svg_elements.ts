/** Shared by both charts: helpers that append elements, and the margins of a plot. */

import { el, svg } from "../dom.ts";

export const PANEL = 250;
export const TOP = 12;
export const BOTTOM = 30;

/** Append an HTML element to `parent` and return it. */
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

/** Append an SVG element to `parent` and return it. */
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
