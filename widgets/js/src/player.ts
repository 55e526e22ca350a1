/** Playback of a deck: a number of tasks per second, up to a breakpoint or the end. */

import type { Store } from "./store.ts";

/** Longest gap between two frames that playback makes up for, milliseconds. */
const LONGEST_FRAME = 100;
/** Longest time for which the kernel receives tasks at once, milliseconds. Pausing takes at most this long. */
const LONGEST_ORDER = 250;
/** Time over which the actual speed is measured, milliseconds. */
const LOOKED_AT = 1000;
/** Share of the requested speed above which the actual speed is not reported. */
const KEEPS_UP = 0.9;

export class Player {
  private last: number | null = null;
  private owed = 0;
  /** Time and position at the last measurement of the speed. */
  private mark: { now: number; t: number } | null = null;

  constructor(private readonly store: Store) {}

  /**
   * Advance to a frame. All views of the store call this; views in the same frame pass the same time, so nothing is
   * played twice.
   */
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
    if (this.store.waits) return; // sends more tasks at once later instead of none in these frames
    const due = Math.floor(this.owed);
    this.owed -= due;
    if (due) this.play(due);
  }

  /** Report the actual speed if it is below the requested one, because the kernel or the page is slower. */
  private measure(now: number): void {
    const { t, front, speed, reached } = this.store.state;
    const at = this.store.isLive ? Math.min(t, front) : t; // positions beyond the front are only planned
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

/** Return the store's only player. */
export function playerOf(store: Store): Player {
  let player = players.get(store);
  if (!player) players.set(store, (player = new Player(store)));
  return player;
}
