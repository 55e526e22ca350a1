/** How high the ready queue is: what it leaves, the inspector below has. It must not jump at each step. */

import type { Stage } from "../view_types.ts";

const LEAST = 150;
const MOST = 344;
/** Below the last row. */
const MARGIN = 10;
/** After so long without a change the deck rests, milliseconds. */
const REST = 1500;

export class QueueHeight {
  private height = MOST;
  private timer: ReturnType<typeof setTimeout> | undefined;

  /** `panels`: the grid that has the queue and the inspector. */
  constructor(
    private readonly stage: Stage,
    private readonly panels: HTMLElement,
  ) {}

  /** `height`: of what is in it. Grows at once; shrinks at once only for another policy. */
  fit(height: number, atOnce: boolean): void {
    clearTimeout(this.timer);
    if (!height) return; // not on the screen yet, or it takes what there is
    const wanted = Math.max(LEAST, Math.min(MOST, height + MARGIN));
    if (wanted > this.height || atOnce) this.set(wanted);
    else if (wanted < this.height) this.timer = setTimeout(() => this.shrink(wanted), REST);
  }

  dispose(): void {
    clearTimeout(this.timer);
  }

  private shrink(wanted: number): void {
    if (!this.stage.store.state.playing) this.set(wanted);
  }

  private set(height: number): void {
    this.height = height;
    this.panels.style.setProperty("--queue", `${height}px`);
  }
}
