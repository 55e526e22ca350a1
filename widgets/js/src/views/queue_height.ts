/** How high the ready queue is: what it leaves, the inspector below has. It must not jump at each step. */

import type { Stage } from "../view.ts";
import { ROW_HEIGHT } from "./queue_row.ts";

const LEAST = 150;
const MOST = 272;
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

  /** `above`: the pixels above the first row. Grows at once; shrinks at once only for another policy. */
  fit(above: number, atOnce: boolean): void {
    clearTimeout(this.timer);
    if (!above) return; // not on the screen yet
    const { replay, state } = this.stage.store;
    const rows = Math.max(1, replay.queueLengths[state.t] - 1);
    const wanted = Math.max(LEAST, Math.min(MOST, above + rows * ROW_HEIGHT + MARGIN));
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
