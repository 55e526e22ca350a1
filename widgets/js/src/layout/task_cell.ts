/** A task with its parameters. */

import { SPINE, TASK_HEIGHT, WIDEST_LABEL } from "../../../../inspector/drawing/layout_constants.json";
import type { Extent } from "./arrangement.ts";
import type { Canvas, Cell } from "./cells.ts";
import { heightBeside, placeSides, roomBeside, type Side } from "./pills_and_stubs.ts";
import { shorten, shortenPath, textWidth } from "./text_width.ts";

const WIDEST_CAPTION = 110;

/** A task on its spine, with pills and stubs at its right. */
export class TaskCell implements Cell {
  readonly extent: Extent;
  private readonly label: string;
  private readonly caption: string;
  private readonly width: number;

  constructor(
    private readonly task: number,
    title: string,
    caption: string,
    private readonly sides: readonly Side[],
  ) {
    this.label = shorten(title, WIDEST_LABEL);
    this.caption = shortenPath(caption, WIDEST_CAPTION);
    const captioned = this.caption ? textWidth(this.caption) + 7 : 0;
    this.width = Math.max(44, 2 * Math.ceil((textWidth(this.label) + captioned + 28) / 2));
    const right = this.width - SPINE + roomBeside(sides);
    this.extent = { left: SPINE, right, height: heightBeside(sides), foot: TASK_HEIGHT };
  }

  arrives(): number {
    return 0;
  }

  leaves(): number {
    return 0;
  }

  place(x: number, y: number, canvas: Canvas): void {
    const { task, label, caption, width } = this;
    const rect = { x: x - SPINE, y, width, height: TASK_HEIGHT };
    canvas.tasks.push({ task, rect, label, caption, chip: false });
    placeSides(task, this.sides, rect, canvas);
  }
}
