/**
 * End of a drag without a pointer release: Escape restores the previous state, and the drag also ends if the window
 * loses the focus.
 */

/** While `isHeld`, listen and call `endDrag`; with `back` true the previous state must be restored. */
export function bindDragEnd(isHeld: () => boolean, endDrag: (back: boolean) => void, signal: AbortSignal): void {
  window.addEventListener("blur", () => isHeld() && endDrag(false), { signal });
  window.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !isHeld()) return;
    event.preventDefault();
    event.stopImmediatePropagation(); // Escape must only end the drag
    endDrag(true);
  }, { signal, capture: true });
}
