/** Printing: the deck is printed as on the screen, without drawing its pictures again for another width. */

export function keepInPrint(root: HTMLElement): () => void {
  const ends = new AbortController();
  const { signal } = ends;
  addEventListener("beforeprint", () => (root.style.width = `${root.offsetWidth}px`), { signal });
  addEventListener("afterprint", () => (root.style.width = ""), { signal });
  return () => ends.abort();
}
