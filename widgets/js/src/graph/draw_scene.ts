/** Drawing of the whole graph with any pen. */

import type { Rect } from "../layout/layout_types.ts";
import type { Colours } from "../view_types.ts";
import { areNamesFar, drawHeader, drawOpenBox, drawRowLabel } from "./draw_box.ts";
import { drawLayers } from "./draw_layers.ts";
import { drawFolded } from "./draw_folded.ts";
import { drawFar, drawSpot, isFar, paintOf } from "./draw_task.ts";
import { drawWires } from "./draw_wires.ts";
import { drawCardMarks, drawMarks } from "./draw_recompute_badges.ts";
import { drawFound, drawFoundCard } from "./draw_search_hits.ts";
import { drawCardGroups, drawNames, drawOutlines } from "./draw_groups.ts";
import { type Facts, stateOf } from "./frame_state.ts";
import { between, grown, touch } from "./spatial_index.ts";
import type { Motion } from "./layout_animation.ts";
import type { Pen } from "./pen.ts";

/** Distance by which rings, stacked cards and labels of rows exceed their rectangles. */
const OVERHANG = 24;

export interface Shot {
  /** Visible part of the picture. */
  area: Rect;
  /** Screen pixels per pixel of the picture. */
  scale: number;
  /** Bytes of each edge. */
  bytes: Float64Array;
  /** Current transition between layouts, and its progress. */
  motion: Motion | null;
  share: number;
}

export function drawScene(pen: Pen, colours: Colours, facts: Facts, shot: Shot): void {
  const { scene } = facts;
  const { motion, share, scale } = shot;
  const area = grown(shot.area, OVERHANG);
  const { boxes } = scene.layout;
  const boxRects = boxes.map(({ rect }, index) => motion?.box(index, share) ?? rect);
  const seenBoxes = boxes.map((_, index) => index).filter((index) => touch(boxRects[index], area));
  for (const index of seenBoxes) if (!boxes[index].closed) drawOpenBox(pen, colours, boxes[index], boxRects[index]);
  drawWires(pen, colours, facts, { area, scale, shown: share, bytes: shot.bytes });
  for (const index of seenBoxes) {
    if (boxes[index].closed) {
      drawFolded(pen, colours, facts, index, boxRects[index], scale);
      drawFoundCard(pen, colours, facts, index, boxRects[index], scale);
      drawCardGroups(pen, colours, facts, index, boxRects[index], scale);
      drawCardMarks(pen, colours, facts, index, boxRects[index], scale);
    } else if (!areNamesFar(scale)) {
      drawHeader(pen, colours, facts, boxes[index], boxRects[index], scale);
      drawLayers(pen, colours, facts, boxes[index], boxRects[index], scale);
    }
  }
  scene.layout.rows.forEach((row, index) => {
    if (touch(grown(row.rect, OVERHANG), area)) drawRowLabel(pen, colours, facts, index, scale);
  });
  drawSpots(pen, colours, facts, shot, area);
  if (areNamesFar(scale)) {
    for (const index of seenBoxes) {
      if (!boxes[index].closed) drawHeader(pen, colours, facts, boxes[index], boxRects[index], scale);
    }
    drawRunning(pen, colours, facts, shot); // on top, so that no name hides it
  }
  if (motion) drawLeaving(pen, colours, facts, motion, share);
}

function drawSpots(pen: Pen, colours: Colours, facts: Facts, { motion, share, scale }: Shot, area: Rect): void {
  const { spots, grid } = facts.scene;
  const rectOf = (index: number) => motion?.spot(index, share) ?? spots[index].rect;
  const seen = motion
    ? spots.map((_, index) => index).filter((index) => touch(rectOf(index), area))
    : grid.search(area);
  const far: number[] = [];
  const near: number[] = [];
  for (const index of seen) (isFar(spots[index], scale) ? far : near).push(index);
  drawOutlines(pen, colours, facts, seen, rectOf, scale);
  drawFar(pen, colours, facts, rectOf, far, scale);
  for (const index of near) drawSpot(pen, colours, facts, spots[index], rectOf(index));
  drawFound(pen, colours, facts, seen, rectOf, scale);
  if (facts.marks.size) for (const index of near) drawMarks(pen, colours, facts, spots[index], rectOf(index));
  drawNames(pen, colours, facts, near, rectOf);
}

function drawRunning(pen: Pen, colours: Colours, facts: Facts, { motion, share, scale }: Shot): void {
  const { spots, spotOf } = facts.scene;
  const running = facts.replay.running(facts.t);
  const index = running < 0 ? -1 : spotOf[running];
  const rectOf = (each: number) => motion?.spot(each, share) ?? spots[each].rect;
  if (index >= 0) drawFar(pen, colours, facts, rectOf, [index], scale);
}

function drawLeaving(pen: Pen, colours: Colours, facts: Facts, motion: Motion, share: number): void {
  pen.alpha = 1 - share;
  for (const { spot, to } of motion.leaving) {
    const done = stateOf(facts, spot) === "done";
    pen.rounded(between(spot.rect, to, share), 5, paintOf(colours, done ? "done" : "waiting"));
  }
  pen.alpha = 1;
}
