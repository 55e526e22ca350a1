/** Throttling of text panels: during fast playback they change only a few times a second. */

import type { Changed } from "../store.ts";
import type { Stage, View } from "../view_types.ts";

/** Tasks per second above which nothing slides and not every task is shown. */
export const SWIFT = 10;
/** Minimum interval between two changes during fast playback, milliseconds. */
const PACE = 66;

/**
 * Return a view that calls `render` at once if the deck is stopped or plays slowly, and otherwise at most once per
 * `PACE`.
 */
export function paced(stage: Stage, render: (changed: Changed) => void): Pick<View, "update" | "draw"> {
  const missed = new Set<keyof Stage["store"]["state"]>();
  let last = 0;
  const flush = () => {
    const changed = new Set(missed);
    missed.clear();
    render(changed);
  };
  return {
    update(changed) {
      for (const name of changed) missed.add(name);
      if (!isSwift(stage)) flush();
      return missed.size > 0;
    },
    draw(now) {
      if (!missed.size) return false;
      if (now - last < PACE) return true;
      last = now;
      flush();
      return false;
    },
  };
}

export function isSwift({ store }: Stage): boolean {
  return store.state.playing && store.state.speed > SWIFT;
}
