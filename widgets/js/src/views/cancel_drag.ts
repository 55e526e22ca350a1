/** What is held with the pointer is let go of by Escape, which puts all back, and where the window loses the focus. */

/** `letGo` is called while `isHeld`; `back` says that all is to be as before. */
export function bindLetGo(isHeld: () => boolean, letGo: (back: boolean) => void, signal: AbortSignal): void {
  window.addEventListener("blur", () => isHeld() && letGo(false), { signal });
  window.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !isHeld()) return;
    event.preventDefault();
    event.stopImmediatePropagation(); // it is for this alone
    letGo(true);
  }, { signal, capture: true });
}
