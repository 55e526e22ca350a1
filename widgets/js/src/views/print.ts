/** Printing: a page is printed as on the screen, without drawing its pictures again for another width. */

import { el } from "../dom.ts";
import { isOwnPage } from "../page_theme.ts";

/** Height of a sheet of paper, relative to its width. */
const TALL = Math.SQRT2;
/** Margin of a saved page, as in its style sheet, pixels. */
const MARGIN = 8;

/** Keep the element's width while it is printed. Return a function that ends this. */
export function keepInPrint(root: HTMLElement): () => void {
  const ends = new AbortController();
  const { signal } = ends;
  addEventListener("beforeprint", () => (root.style.width = `${root.offsetWidth}px`), { signal });
  addEventListener("afterprint", () => (root.style.width = ""), { signal });
  return () => ends.abort();
}

/** Print a saved page on paper as wide as its content. A page that is higher than a sheet continues on the next one. */
export function fitPaper(root: HTMLElement): void {
  if (!isOwnPage()) return; // a notebook chooses its own paper
  const sheet = document.head.appendChild(el("style"));
  addEventListener("beforeprint", () => {
    const [width, height] = [root.offsetWidth + 2 * MARGIN, root.offsetHeight + 2 * MARGIN].map(Math.ceil);
    sheet.textContent = `@page{size:${width}px ${Math.min(height, Math.ceil(TALL * width))}px;margin:0}`;
  });
  keepInPrint(root);
}
