/**
 * In the place of d3-transition and d3-interpolate, which d3-zoom imports for moves that it would animate itself (see
 * build.mjs). Ours are the pilot's: there is nothing to interrupt or to interpolate, and 29 kB, d3-color among them,
 * stay out of the page.
 */

import { selection } from "d3-selection";

export function interrupt(): void {}

/** Of a transition: at once where it ends. */
export function interpolateZoom<T>(_from: T, to: T): () => T {
  return () => to;
}

Object.assign(selection.prototype, {
  interrupt<T>(this: T): T {
    return this;
  },
});
