/** Puts a deck on the screen: one store, its views, and the loop that draws them. */

import styles from "./deck.css";
import type { Changed, Store } from "./store.ts";
import { el } from "./dom.ts";
import type { Colours, Stage, View } from "./view.ts";
import { bindKeys } from "./views/keyboard.ts";
import { makeAnnouncer } from "./views/announcer.ts";
import { makeBar } from "./views/bar.ts";
import { makeFooter } from "./views/footer.ts";
import { makeGraph } from "./views/graph.ts";
import { makeInspector } from "./views/inspector.ts";
import { makeLifetimes } from "./views/lifetimes.ts";
import { makeMemory } from "./views/memory.ts";
import { makeQueue } from "./views/queue.ts";
import { makeScrub } from "./views/scrub.ts";
import { followTheme, readColours } from "./views/theme.ts";
import { makeTip } from "./views/tip.ts";

/** Longest time between two frames that playing makes up for, milliseconds. */
const LONGEST_FRAME = 100;

/** Builds the deck in `host`. Returns what takes it away, with all listeners and timers. */
export function mountDeck(host: HTMLElement, store: Store): () => void {
  const shadow = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const style = el("style", {}, styles);
  const root = el("div", { class: "deck", tabindex: "0", role: "region", "aria-label": "tapehead deck" });
  // JupyterLab must leave the deck's keys and its context menu alone.
  host.dataset.lmSuppressShortcuts = "true";
  host.dataset.jpSuppressContextMenu = "true";
  shadow.replaceChildren(style, root);

  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let wanted = true;
  const tip = makeTip();
  const stage: Stage = {
    store,
    root,
    colours: {} as Colours,
    tree: null,
    get still() {
      return still.matches;
    },
    redraw: () => {
      wanted = true;
    },
    tip,
  };

  const inner = el("div", { class: "deck-in" });
  const frame = el("div", { class: "frame" });
  root.append(inner);
  inner.append(frame);
  const main = el("div", { class: "main", id: "main", role: "tabpanel", "aria-label": "the shown policy" });
  const views: View[] = [];
  views.push(makeBar(stage, frame), makeScrub(stage, frame));
  frame.append(main);
  views.push(makeGraph(stage, main), makeQueue(stage, main), makeInspector(stage, main));
  views.push(makeMemory(stage, frame), makeLifetimes(stage, frame), makeFooter(stage, frame));
  views.push(makeAnnouncer(stage, root));

  const update = (changed: Changed) => {
    for (const view of views) view.update(changed);
    root.dataset.t = String(store.state.t);
    root.dataset.running = String(store.running);
    root.dataset.status = store.state.status;
    root.dataset.policy = store.replay.schedule.policy;
    wanted = true;
  };
  const repaint = () => {
    stage.colours = readColours(root);
    update(new Set());
  };
  const unbind = [store.subscribe(update), bindKeys(stage), followTheme(stage, repaint)];
  update(new Set(Object.keys(store.state) as (keyof typeof store.state)[]));

  // JupyterLab puts the deck into its page after this: only then it has a size and its style sheet colours.
  const resize = new ResizeObserver(() => (stage.colours.bg ? stage.redraw() : repaint()));
  resize.observe(root);

  let last = performance.now();
  let owed = 0;
  let handle = requestAnimationFrame(function tick(now) {
    const elapsed = Math.min(LONGEST_FRAME, now - last);
    last = now;
    if (store.state.playing) {
      owed += (elapsed / 1000) * store.state.speed;
      const due = Math.floor(owed);
      owed -= due;
      if (due) play(store, due);
    } else owed = 0;
    if (wanted) {
      wanted = false;
      for (const view of views) if (view.draw?.(now)) wanted = true;
    }
    handle = requestAnimationFrame(tick);
  });

  return () => {
    cancelAnimationFrame(handle);
    resize.disconnect();
    for (const end of unbind) end();
    for (const view of views) view.dispose();
    shadow.replaceChildren();
  };
}

/** So many tasks on, up to a breakpoint or the end, where playing stops. */
function play(store: Store, due: number): void {
  const { t, front, breakpoints } = store.state;
  const { order } = store.replay.schedule;
  if (store.isLive && t >= front) {
    store.advance(due);
    return;
  }
  const limit = store.isLive ? front : order.length;
  for (let place = t + 1; place <= Math.min(t + due, limit); place++) {
    if (place < order.length && breakpoints.has(order[place])) {
      store.update({ playing: false });
      store.go(place);
      return;
    }
  }
  store.advance(due);
  if (store.state.t >= store.replay.length) store.update({ playing: false });
}
