/**
 * Transition from one layout to the next: common items move, tasks fly out of a card that opens and into one that
 * closes.
 */

import type { Rect } from "../layout/layout_types.ts";
import type { CameraView } from "./camera.ts";
import { between } from "./spatial_index.ts";
import type { Scene } from "./scene.ts";
import type { Spot } from "./scene_types.ts";

const DURATION = 220;
/** Maximum number of tasks that fly into a card. */
const MOST_LEAVING = 1500;
/** Initial size of items that fly out of a card, relative. */
const SEED = 0.3;

export class Motion {
  /** Spots that the new layout lacks, and their destinations. */
  readonly leaving: { spot: Spot; to: Rect }[] = [];
  private readonly spotStarts: (Rect | null)[];
  private readonly boxStarts: (Rect | null)[];

  /** The camera moves from one view to the other, which keeps the clicked item under the pointer. */
  constructor(
    from: Scene,
    private readonly to: Scene,
    private readonly started: number,
    readonly views: { from: CameraView; to: CameraView },
  ) {
    this.spotStarts = to.spots.map((spot) => startOf(from, spot));
    this.boxStarts = to.layout.boxes.map(({ box }) => {
      for (let each: typeof box | null = box; each; each = each.parent) {
        const index = from.boxes.get(each.id);
        if (index === undefined) continue;
        const { rect } = from.layout.boxes[index];
        return each === box ? rect : seed(rect, rect);
      }
      return null;
    });
    for (const spot of from.spots) {
      if (spot.kind === "stub" || to.spotOf[spot.task] >= 0) continue;
      const card = to.rectOf(spot.task);
      if (card) this.leaving.push({ spot, to: seed(card, spot.rect) });
      if (this.leaving.length === MOST_LEAVING) break;
    }
  }

  /** Return the eased progress; 1 at the end. */
  share(now: number): number {
    const share = Math.max(0, Math.min(1, (now - this.started) / DURATION));
    return 1 - (1 - share) ** 3;
  }

  spot(index: number, share: number): Rect {
    const { rect } = this.to.spots[index];
    const start = this.spotStarts[index];
    return start ? between(start, rect, share) : rect;
  }

  box(index: number, share: number): Rect {
    const { rect } = this.to.layout.boxes[index];
    const start = this.boxStarts[index];
    return start ? between(start, rect, share) : rect;
  }

  view(share: number): CameraView {
    const { from, to } = this.views;
    return {
      x: from.x + (to.x - from.x) * share,
      y: from.y + (to.y - from.y) * share,
      k: from.k + (to.k - from.k) * share,
    };
  }
}

function startOf(from: Scene, spot: Spot): Rect | null {
  if (spot.kind === "stub") return null;
  const before = from.spotOf[spot.task];
  if (before >= 0) return from.spots[before].rect;
  const card = from.rectOf(spot.task);
  return card && seed(card, spot.rect);
}

/** Return a small rectangle in the middle of a card, with the proportions of `shape`. */
function seed(card: Rect, shape: Rect): Rect {
  const width = shape.width * SEED;
  const height = shape.height * SEED;
  return { x: card.x + (card.width - width) / 2, y: card.y + (card.height - height) / 2, width, height };
}
