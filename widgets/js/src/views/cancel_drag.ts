/**
 * End of a drag without a pointer release: Escape restores the previous state, and the drag also ends if the window
 * loses the focus.
 */

/** While `isHeld`, listen and call `letGo`; with `back` true the previous state must be restored. */
export function bindLetGo(isHeld: () => boolean, letGo: (back: boolean) => void, signal: AbortSignal): void {
  window.addEventListener("blur", () => isHeld() && letGo(false), { signal });
  window.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !isHeld()) return;
    event.preventDefault();
    event.stopImmediatePropagation(); // Escape must only end the drag
    letGo(true);
  }, { signal, capture: true });
}
