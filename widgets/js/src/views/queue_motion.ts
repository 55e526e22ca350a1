/** Animations of the ready queue's rows. */

import { el } from "../dom.ts";

const SLIDE: KeyframeAnimationOptions = { duration: 160, easing: "cubic-bezier(.2,0,0,1)" };

/** Pixels from the corner of another element. */
export interface Place {
  left: number;
  top: number;
  width: number;
}

export function placeIn(element: HTMLElement, around: Element | null): Place | undefined {
  if (!around) return undefined;
  const inner = element.getBoundingClientRect();
  const outer = around.getBoundingClientRect();
  return { left: inner.left - outer.left, top: inner.top - outer.top, width: inner.width };
}

export function arrive(element: HTMLElement): void {
  element.animate({ opacity: [0, 1], transform: ["translateX(-6px)", "none"] }, SLIDE);
}

/** Slide an element from `from` pixels below its position. */
export function slide(element: HTMLElement, from: number): void {
  element.animate({ transform: [`translateY(${from}px)`, "none"] }, SLIDE);
}

/** Animate a copy of the picked row that flies to the running task. */
export function fly(element: HTMLElement, from: Place, target: HTMLElement): void {
  const row = element.querySelector(".row")?.cloneNode(true) as HTMLElement;
  row.tabIndex = -1;
  const copy = el("div", { class: "flying", "aria-hidden": "true" }, row);
  Object.assign(copy.style, { left: `${from.left}px`, top: `${from.top}px`, width: `${from.width}px` });
  target.after(copy);
  const rise = target.offsetTop - from.top;
  const moved = copy.animate({ transform: ["none", `translateY(${rise}px)`], opacity: [1, 0] }, SLIDE);
  moved.onfinish = moved.oncancel = () => copy.remove();
}
