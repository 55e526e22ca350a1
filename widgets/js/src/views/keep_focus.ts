/** Handling of lost focus: if the focused element is removed, the deck takes the focus, so that its keys still work. */

/** Start it. Return a function that stops it. */
export function keepFocus(root: HTMLElement): () => void {
  /** Focused element; null if it is outside of the deck or the user moved the focus away. */
  let focused: HTMLElement | null = null;
  const rescue = () => {
    if (!focused || focused === root || canHaveFocus(focused)) return;
    const lost = focused;
    focused = null;
    const { activeElement } = root.getRootNode() as ShadowRoot;
    if (!activeElement || activeElement === lost) root.focus({ preventScroll: true });
  };
  const came = ({ target }: FocusEvent) => {
    focused = target as HTMLElement;
  };
  const went = ({ target }: FocusEvent) => {
    // Browsers fire the event before the element is removed, afterwards, or not at all.
    queueMicrotask(() => {
      if (focused !== target) return;
      if (canHaveFocus(focused as HTMLElement)) focused = null;
      else rescue();
    });
  };
  const observer = new MutationObserver(rescue);
  observer.observe(root, { childList: true, subtree: true, attributes: true, attributeFilter: ["hidden", "disabled"] });
  root.addEventListener("focusin", came);
  root.addEventListener("focusout", went);
  return () => {
    observer.disconnect();
    root.removeEventListener("focusin", came);
    root.removeEventListener("focusout", went);
  };
}

function canHaveFocus(element: HTMLElement): boolean {
  return element.checkVisibility({ visibilityProperty: true }) && !element.matches(":disabled");
}
