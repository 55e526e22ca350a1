/** Plays a deck: so many tasks a second, up to a breakpoint or the end. */

import type { Store } from "./store.ts";

/** Longest time between two frames that playing makes up for, milliseconds. */
const LONGEST_FRAME = 100;

export class Player {
  private last: number | null = null;
  private owed = 0;

  constructor(private readonly store: Store) {}

  /** Called at each frame by every view of the store. In one frame they give the same time: they don't play it twice. */
  frame(now: number): void {
    const { playing, speed } = this.store.state;
    if (!playing) {
      this.last = null;
      this.owed = 0;
      return;
    }
    const elapsed = Math.max(0, Math.min(LONGEST_FRAME, now - (this.last ?? now)));
    this.last = now;
    this.owed += (elapsed / 1000) * speed;
    const due = Math.floor(this.owed);
    this.owed -= due;
    if (due) this.play(due);
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
