/**
 * The way to a deck's keys in a notebook, where another cell has the focus after a run: a hint, until the deck has had
 * the focus once, and a key that moves the focus to the deck.
 */

import { el } from "../dom.ts";
import { isOwnPage } from "../page_theme.ts";

/** No notebook uses this key. `code` is the same on all layouts; on a Mac, Option changes `key`. */
const isEntry = ({ code, altKey, shiftKey, ctrlKey, metaKey }: KeyboardEvent) =>
  code === "KeyD" && altKey && shiftKey && !ctrlKey && !metaKey;

/** Show the hint in the bar and listen for the key. Return a function that ends both. */
export function bindEntry(root: HTMLElement): () => void {
  if (isOwnPage()) return () => {}; // a saved page focuses its deck on load
  const isFramed = window.top !== window; // keys pressed in the notebook do not arrive in a frame
  const key = /Mac/.test(navigator.platform) ? "⌥⇧D" : "Alt+Shift+D";
  const hint = el("span", { class: "entry" }, `${isFramed ? "click" : key} for keys`);
  const press = (event: KeyboardEvent) => {
    if (!isEntry(event)) return;
    event.preventDefault();
    event.stopImmediatePropagation(); // every deck of the page listens, and the first one acts for all
    enter();
  };
  root.querySelector(".aside")!.before(hint);
  document.addEventListener("keydown", press, true);
  root.addEventListener("focusin", () => hint.remove(), { once: true });
  return () => document.removeEventListener("keydown", press, true);
}

/** Focus the lowest deck in view, or from a deck the one above it. Escape moves the focus back. */
function enter(): void {
  const boxOf = (host: HTMLElement) => host.getBoundingClientRect();
  const hosts = [...document.querySelectorAll<HTMLElement>(".tapescope-deck")].filter((host) => boxOf(host).height);
  const inView = hosts.filter((host) => boxOf(host).bottom > 0 && boxOf(host).top < innerHeight);
  const from = document.activeElement as HTMLElement;
  const at = inView.indexOf(from);
  const host = inView.at(at < 0 ? -1 : at - 1) ?? hosts.at(-1);
  host?.shadowRoot?.querySelector<HTMLElement>(".deck")?.focus();
  if (at < 0) host?.addEventListener("tapescope-leave", () => from.focus({ preventScroll: true }), { once: true });
}
