/** The focus is never lost: where what has it goes away, the deck takes it, so that its keys still work. */

/** Returns what ends that. */
export function keepFocus(root: HTMLElement): () => void {
  /** What has the focus; null where it is outside of the deck, or was moved away by the reader. */
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
    // Browsers tell of it before it is taken away, after, or not at all.
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
