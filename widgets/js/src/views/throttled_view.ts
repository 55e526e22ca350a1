/** Parts of the page that are read, not watched: while the deck plays fast they change a few times a second. */

import type { Changed } from "../store.ts";
import type { Stage, View } from "../view_types.ts";

/** Faster than so many tasks per second, nothing slides, and not every task is shown. */
export const SWIFT = 10;
/** The shortest time between two changes while it plays fast, milliseconds. */
const PACE = 66;

/** A view that calls `render` at once when the deck stands or plays slowly, else at that pace. */
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
