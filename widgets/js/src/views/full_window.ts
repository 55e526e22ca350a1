/**
 * Display of the deck over the whole window. It does not use the Fullscreen API, which is blocked in frames. Instead
 * the host has a fixed position and is in the browser's top layer, because a notebook may contain the layout of its
 * cells.
 */

import type { MakeView } from "../view_types.ts";

const FIXED = {
  position: "fixed", inset: "0", width: "100vw", height: "100vh", "z-index": "1000", margin: "0", padding: "0", border: "0",
} as const;

export const makeFullWindow: MakeView = ({ store, root }) => {
  const host = () => (root.getRootNode() as ShadowRoot).host as HTMLElement;
  let before: { style: string | null; page: string } | null = null;

  const enter = () => {
    before ??= { style: host().getAttribute("style"), page: document.documentElement.style.overflow };
    for (const [name, value] of Object.entries(FIXED)) host().style.setProperty(name, value);
    document.documentElement.style.overflow = "hidden";
    host().popover = "manual";
    host().showPopover?.();
    root.focus({ preventScroll: true });
  };
  const leave = () => {
    if (!before) return;
    if (host().isConnected) host().hidePopover?.();
    host().popover = null;
    if (before.style === null) host().removeAttribute("style");
    else host().setAttribute("style", before.style);
    document.documentElement.style.overflow = before.page;
    before = null;
  };
  /** Tab moves the focus from the last control to the first, and back. */
  const stay = (event: KeyboardEvent) => {
    if (!before || event.key !== "Tab") return;
    const inside = [...root.querySelectorAll<HTMLElement>("button, input, select, a[href], [tabindex]")].filter(
      (each) => each.tabIndex >= 0 && !each.hasAttribute("disabled") && each.getClientRects().length,
    );
    const focused = (root.getRootNode() as ShadowRoot).activeElement;
    const [first, last] = [inside[0], inside[inside.length - 1]];
    const isLeaving = event.shiftKey ? focused === first || focused === root : focused === last;
    if (!isLeaving) return;
    event.preventDefault();
    (event.shiftKey ? last : first).focus();
  };
  root.addEventListener("keydown", stay);
  return {
    update(changed) {
      if (!changed.has("isFull")) return;
      root.classList.toggle("full", store.state.isFull);
      if (store.state.isFull) return enter();
      if (!before) return; // the first update must not take the focus from the notebook
      leave();
      root.focus({ preventScroll: true }); // the control that had it may be hidden in the narrower deck
    },
    dispose() {
      root.removeEventListener("keydown", stay);
      leave();
    },
  };
};
