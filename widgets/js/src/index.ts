/** The module that anywidget loads; saved pages call its `show`. */

import { el } from "./dom.ts";
import { DocumentError } from "./model/check_document.ts";
import { readDocument } from "./model/read_document.ts";
import { mountDeck } from "./deck.ts";
import { type Model, openLink, send } from "./kernel_link.ts";
import { Store } from "./store.ts";

/**
 * Stores by model id, shared by all views of a model. anywidget passes each view its own model object, which receives
 * nothing after the view is closed. The one passed to `initialize` receives messages as long as the model exists.
 */
const stores = new Map<string, { store: Promise<Store>; views: number }>();

function initialize({ model }: { model: Model }): () => void {
  const id = String(model.get("_id"));
  const closing = new AbortController();
  const store = openLink(model, closing.signal);
  store.catch(() => {}); // `render` reports the error
  stores.set(id, { store, views: 0 });
  return () => {
    closing.abort();
    model.off(); // a notebook keeps references to removed models; their listeners would keep the whole document alive
    stores.delete(id);
  };
}

async function render({ model, el: host }: { model: Model; el: HTMLElement }): Promise<() => void> {
  const id = String(model.get("_id"));
  const shared = stores.get(id);
  host.classList.add("tapescope-deck");
  if (!shared) return refuse(host, new DocumentError("This deck was closed."));
  shared.views++;
  const still = hideStill(id);
  let take: () => void;
  try {
    take = mountDeck(host, await shared.store);
  } catch (error) {
    take = refuse(host, error);
    still.remove();
  }
  return () => {
    take();
    still.remove();
    if (--shared.views) return;
    // otherwise playback would continue when the deck is shown again
    shared.store.then((store) => store.update({ playing: false }), () => {});
    send(model, { kind: "unseen" });
  };
}

/** Hide the still picture of the deck, another output of the same cell that serves pages without scripts. */
function hideStill(id: string): HTMLElement {
  const still = `tapescope-still-${CSS.escape(id)}`;
  const style = el("style", {}, `.jp-OutputArea-child:has(img[src*="${still}"]) { display: none }`);
  document.head.append(style);
  return style;
}

/** Show a saved deck. `data` is its document, gzipped. */
export async function show(host: HTMLElement, data: BufferSource): Promise<void> {
  try {
    mountDeck(host, new Store(await readDocument(data), null));
  } catch (error) {
    refuse(host, error);
  }
}

function refuse(host: HTMLElement, error: unknown): () => void {
  const known = error instanceof DocumentError;
  const said = known ? error.message : `The deck could not be shown: ${String(error)}`;
  const notice = el("p", { role: "alert", style: "font: 13px/1.5 system-ui, sans-serif; margin: 12px" }, said);
  // The shadow root may contain half a deck, and it would hide content outside of it.
  if (host.shadowRoot) host.shadowRoot.replaceChildren(notice);
  else host.append(notice);
  if (!known) console.error(error);
  return () => notice.remove();
}

export default { initialize, render };
