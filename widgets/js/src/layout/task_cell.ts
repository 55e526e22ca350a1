/** A task with its parameters. */

import type { Extent } from "./arrangement.ts";
import type { Canvas, Cell } from "./cells.ts";
import { heightBeside, placeSides, roomBeside, type Side, TASK_HEIGHT } from "./sides.ts";
import { shorten, textWidth } from "./text_width.ts";

export const WIDEST_LABEL = 190;
const WIDEST_CAPTION = 110;

/** A task, with pills and stubs at its left and right. */
export class TaskCell implements Cell {
  readonly extent: Extent;
  private readonly label: string;
  private readonly caption: string;
  private readonly width: number;

  constructor(
    private readonly task: number,
    title: string,
    caption: string,
    private readonly left: readonly Side[],
    private readonly right: readonly Side[],
  ) {
    this.label = shorten(title, WIDEST_LABEL);
    this.caption = shorten(caption, WIDEST_CAPTION);
    const captioned = this.caption ? textWidth(this.caption) + 7 : 0;
    this.width = Math.max(44, 2 * Math.ceil((textWidth(this.label) + captioned + 28) / 2));
    const half = this.width / 2;
    const height = Math.max(TASK_HEIGHT, heightBeside(left, right));
    this.extent = { left: half + roomBeside(left), right: half + roomBeside(right), height, foot: TASK_HEIGHT };
  }

  arrives(): number {
    return 0;
  }

  leaves(): number {
    return 0;
  }

  place(x: number, y: number, canvas: Canvas): void {
    const { task, label, caption, width } = this;
    const rect = { x: x - width / 2, y, width, height: TASK_HEIGHT };
    canvas.tasks.push({ task, rect, label, caption, chip: false });
    placeSides(task, this.left, rect, -1, canvas);
    placeSides(task, this.right, rect, 1, canvas);
  }
}
