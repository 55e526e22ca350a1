/** Height of the ready queue; the inspector below has the rest. It must not change at each step. */

import type { Stage } from "../view_types.ts";

const LEAST = 150;
const MOST = 344;
/** Margin below the last row. */
const MARGIN = 10;
/** Time without changes after which the deck counts as idle, milliseconds. */
const REST = 1500;

export class QueueHeight {
  private height = MOST;
  private timer: ReturnType<typeof setTimeout> | undefined;

  /** `panels` is the grid that contains the queue and the inspector. */
  constructor(
    private readonly stage: Stage,
    private readonly panels: HTMLElement,
  ) {}

  /** Fit the content's `height`. The queue grows at once, but shrinks at once only if `atOnce`, for another policy. */
  fit(height: number, atOnce: boolean): void {
    clearTimeout(this.timer);
    if (!height) return; // not visible yet, or it takes all the space
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
