/** Mounting of a deck: one store, its views, and the frames in which they are drawn. */

import styles from "./deck.css";
import queueStyles from "./views/queue.css";
import { type Changed, hasMoved, type Store } from "./store.ts";
import { el } from "./dom.ts";
import { playerOf } from "./player.ts";
import type { Colours, Stage, View } from "./view_types.ts";
import { keepFocus } from "./views/keep_focus.ts";
import { bindKeys } from "./views/keyboard.ts";
import { bindEntry } from "./views/keyboard_entry.ts";
import { makeAnnouncer } from "./views/announcer.ts";
import { makeBar } from "./views/top_bar.ts";
import { makeGraph } from "./views/graph.ts";
import { makeInspector } from "./views/inspector.ts";
import { makeQueue } from "./views/queue.ts";
import { makeFullWindow } from "./views/full_window.ts";
import { makeGrip } from "./views/splitter.ts";
import { keepInPrint } from "./views/print.ts";
import { followTheme, readColours } from "./views/theme.ts";
import { makeTimeline } from "./views/timeline.ts";
import { makeTip } from "./views/tooltip.ts";

/** Build the deck in `host`. Return a function that removes it with all listeners and timers. */
export function mountDeck(host: HTMLElement, store: Store): () => void {
  const shadow = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  // the second style sheet overrides widths and colours of the first
  const style = el("style", {}, queueStyles, styles);
  const root = el("div", { class: "deck", tabindex: "-1", role: "region", "aria-label": "tapescope deck" });
  // JupyterLab must not handle the deck's keys and its context menu.
  host.dataset.lmSuppressShortcuts = "true";
  host.dataset.jpSuppressContextMenu = "true";
  shadow.replaceChildren(style, root);

  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const player = playerOf(store);
  const views: View[] = [];
  /** Views to draw in the next frame. */
  const wanted = new Set<View>();
  let handle = 0;
  const request = () => {
    handle ||= requestAnimationFrame(frame);
  };
  const redraw = (view: View) => {
    wanted.add(view);
    delete root.dataset.rests;
    request();
  };
  const redrawAll = () => views.forEach(redraw);
  const frame = (now: number) => {
    handle = 0;
    const isShown = root.clientWidth > 0; // read before any write; reading it afterwards would force a layout
    player.frame(now);
    // JupyterLab hides the whole page while it changes its theme, and canvases drawn without a size would stay blank.
    // Observing again reports the next size even if it equals the last one.
    if (!isShown) {
      resize.disconnect();
      resize.observe(root);
      if (store.state.playing) request();
      return;
    }
    for (const view of views) if (wanted.delete(view) && view.draw?.(now)) wanted.add(view);
    if (wanted.size || store.state.playing) request();
    else if (stage.colours.bg) root.dataset.rests = ""; // every requested frame has been drawn
  };
  const tip = makeTip();
  const stage: Stage = {
    store,
    root,
    colours: {} as Colours,
    tree: null,
    get still() {
      return still.matches;
    },
    redraw,
    tip,
  };

  const inner = el("div", { class: "deck-in" });
  const panels = el("div", { class: "frame" });
  root.append(inner);
  inner.append(panels);
  const main = el("div", { class: "main", id: "main", role: "tabpanel", "aria-label": "the shown policy" });
  views.push(makeBar(stage, panels));
  panels.append(main);
  views.push(makeGraph(stage, main));
  const side = main.appendChild(el("div", { class: "side" })); // a separate column of narrow decks
  views.push(makeQueue(stage, side), makeInspector(stage, side));
  views.push(makeGrip(stage, panels), makeTimeline(stage, panels));
  views.push(makeAnnouncer(stage, root), makeFullWindow(stage, panels));

  const update = (changed: Changed) => {
    for (const view of views) if (view.update(changed)) redraw(view);
    if (hasMoved(changed)) {
      root.dataset.t = String(store.state.t);
      root.dataset.running = String(store.running);
      root.dataset.status = store.state.status;
      root.dataset.policy = store.replay.schedule.policy;
    }
    request(); // playback may have started
  };
  const repaint = () => {
    stage.colours = readColours(root);
    redrawAll();
  };
  const unbind = [store.subscribe(update), bindKeys(stage), bindEntry(root), keepFocus(root), keepInPrint(root), followTheme(stage, repaint)];
  update(new Set(Object.keys(store.state) as (keyof typeof store.state)[]));

  // JupyterLab attaches the deck to its page after this call. Only then it has a size and its style sheet's colours.
  const resize = new ResizeObserver(() => (stage.colours.bg ? redrawAll() : repaint()));
  resize.observe(root);

  return () => {
    resize.disconnect();
    for (const end of unbind) end();
    for (const view of views) view.dispose();
    cancelAnimationFrame(handle);
    shadow.replaceChildren();
  };
}
