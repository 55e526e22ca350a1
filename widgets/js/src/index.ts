/** The module that anywidget loads; also what a saved page calls. */

import { el } from "./dom.ts";
import { DocumentError } from "./model/check_document.ts";
import { readDocument } from "./model/read_document.ts";
import { mountDeck } from "./deck.ts";
import { type Model, openLink, tell } from "./kernel_link.ts";
import { Store } from "./store.ts";

/**
 * One store per model, shared by all of its views. anywidget gives each of them a model of its own, deaf once that view
 * is closed; the one of `initialize` hears as long as there is a model.
 */
const stores = new Map<string, { store: Promise<Store>; views: number }>();

function initialize({ model }: { model: Model }): () => void {
  const id = String(model.get("_id"));
  const store = openLink(model);
  store.catch(() => {}); // `render` says what is wrong
  stores.set(id, { store, views: 0 });
  return () => {
    model.off(); // a notebook keeps some models that are gone: what listens to them would keep the whole document
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
    shared.store.then((store) => store.update({ playing: false }), () => {}); // or it would run on when shown again
    tell(model, { kind: "unseen" });
  };
}

/** The picture that stands for the deck where no page runs is another output of the same cell. */
function hideStill(id: string): HTMLElement {
  const still = `tapescope-still-${CSS.escape(id)}`;
  const style = el("style", {}, `.jp-OutputArea-child:has(img[src*="${still}"]) { display: none }`);
  document.head.append(style);
  return style;
}

/** Shows a saved deck: `data` is its document, gzipped. */
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
  // Half a deck may stand in the shadow root already, and what is outside of that would not be seen.
  if (host.shadowRoot) host.shadowRoot.replaceChildren(notice);
  else host.append(notice);
  if (!known) console.error(error);
  return () => notice.remove();
}

export default { initialize, render };
