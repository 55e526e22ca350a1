/** Plays a deck: so many tasks a second, up to a breakpoint or the end. */

import type { Store } from "./store.ts";

/** Longest time between two frames that playing makes up for, milliseconds. */
const LONGEST_FRAME = 100;
/** The longest time for which the kernel is given tasks at once, milliseconds: so long a pause may take. */
const LONGEST_ORDER = 250;
/** How long is looked at to say what speed it comes to, milliseconds. */
const LOOKED_AT = 1000;
/** A speed that is so near to what was asked for is not worth a word. */
const KEEPS_UP = 0.9;

export class Player {
  private last: number | null = null;
  private owed = 0;
  /** When the speed was last looked at, and where it was then. */
  private mark: { now: number; t: number } | null = null;

  constructor(private readonly store: Store) {}

  /** Called at each frame by every view of the store. In one frame they give the same time: they don't play it twice. */
  frame(now: number): void {
    const { playing, speed } = this.store.state;
    if (!playing) {
      this.last = this.mark = null;
      this.owed = 0;
      if (this.store.state.reached !== null) this.store.update({ reached: null });
      return;
    }
    const elapsed = Math.max(0, Math.min(LONGEST_FRAME, now - (this.last ?? now)));
    this.last = now;
    this.owed = Math.min(this.owed + (elapsed / 1000) * speed, Math.max(1, (LONGEST_ORDER / 1000) * speed));
    this.measure(now);
    if (this.store.waits) return; // the kernel is given more at once, rather than nothing for these frames
    const due = Math.floor(this.owed);
    this.owed -= due;
    if (due) this.play(due);
  }

  /** Says what speed it comes to, where that is less than what was asked for: the kernel, or the page, has its own. */
  private measure(now: number): void {
    const { t, front, speed, reached } = this.store.state;
    const at = this.store.isLive ? Math.min(t, front) : t; // what is only planned has not been reached
    if (!this.mark || at < this.mark.t) this.mark = { now, t: at };
    const elapsed = now - this.mark.now;
    if (elapsed < LOOKED_AT) return;
    const count = at - this.mark.t;
    this.mark = { now, t: at };
    const wanted = (speed * elapsed) / 1000;
    const said = count < KEEPS_UP * wanted - 1 ? Math.round((count * 1000) / elapsed) : null;
    if (said !== reached) this.store.update({ reached: said });
  }

  private play(due: number): void {
    const { store } = this;
    const ran = store.isLive ? store.state.front : store.replay.length;
    const place = store.nextStop(Math.min(store.state.t + due, ran));
    if (place !== null) {
      store.update({ playing: false });
      store.go(place);
      return;
    }
    store.advance(due);
    if (store.state.t >= store.limit) store.update({ playing: false });
  }
}

const players = new WeakMap<Store, Player>();

/** The one player of a store. */
export function playerOf(store: Store): Player {
  let player = players.get(store);
  if (!player) players.set(store, (player = new Player(store)));
  return player;
}
