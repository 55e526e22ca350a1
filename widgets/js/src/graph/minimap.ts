/** The minimap: the whole graph in a corner and the visible part of it. It is shown if something is out of view. */

import type { Rect, Size } from "../layout/layout_types.ts";
import { el } from "../dom.ts";
import type { Colours } from "../view_types.ts";
import { type CameraView, areaOf } from "./camera.ts";
import { HEADER_HEIGHT } from "./draw_box.ts";
import { hueOf } from "./draw_groups.ts";
import { cardOpacity, countOf, type Facts, opacityOf, stateOf } from "./frame_state.ts";
import { touch } from "./spatial_index.ts";
import type { Outline } from "../model/outlines.ts";
import type { ShownState } from "../model/replay.ts";
import type { Spot } from "./scene_types.ts";

/** Margin inside of the map, pixels. */
const MARGIN = 6;
/** Minimum excess of the picture over the screen for which something counts as out of view, pixels. */
const TOLERANCE = 30;
/** Distance from the panel's edges, and additional space around the map. */
const FROM_EDGE = 8;
/** Minimum interval between updates of a large graph's states, milliseconds. */
const REFRESH = 200;
const LARGE = 1500;
/** Weight of the shown task in the choice of a corner. */
const WEIGHT_OF_SHOWN = 50;
/** Weight of a card, and of an open box's header, and the approximate width of the header. */
const WEIGHT_OF_BOX = 3;
const HEADER_WIDTH = 120;
/** Opacity below which a task is also faded in the map. */
const FADED_BELOW = 0.5;
const FADED = 0.35;

type Corner = "right bottom" | "left bottom" | "right top" | "left top";
const CORNERS: readonly Corner[] = ["right bottom", "left bottom", "right top", "left top"];

export class Minimap {
  readonly canvas = el("canvas", { class: "mini", "aria-hidden": "true" });
  private readonly states = document.createElement("canvas");
  private corner: Corner = "right bottom";
  private size: Size = { width: 0, height: 0 };
  private drawnFor: readonly unknown[] = [];
  private drawnAt = -Infinity;
  private scale = 1;
  private offset = { x: 0, y: 0 };

  private readonly observer = new ResizeObserver(([{ borderBoxSize: [box] }]) => {
    this.size = { width: box.inlineSize, height: box.blockSize };
  });

  /**
   * `taken` says whether the top left corner is occupied. `look` moves the camera's middle to a point of the picture.
   */
  constructor(
    look: (x: number, y: number) => void,
    private readonly taken: () => boolean,
  ) {
    this.canvas.hidden = true;
    this.observer.observe(this.canvas);
    const point = (event: PointerEvent) => {
      look((event.offsetX - this.offset.x) / this.scale, (event.offsetY - this.offset.y) / this.scale);
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      this.canvas.setPointerCapture(event.pointerId);
      point(event);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.canvas.hasPointerCapture(event.pointerId)) point(event);
    });
  }

  dispose(): void {
    this.observer.disconnect();
  }

  /** Draw the map if it is needed. Return whether it must be drawn again soon. */
  draw(colours: Colours, facts: Facts, view: CameraView, screen: Size, settled: boolean, now: number): boolean {
    const { layout } = facts.scene;
    const inView =
      layout.width * view.k <= screen.width + TOLERANCE && layout.height * view.k <= screen.height + TOLERANCE;
    if (this.canvas.hidden !== inView) this.canvas.hidden = inView;
    if (inView) return false;
    if (!this.size.width || !this.size.height) return true; // it was just shown; its size is known in the next frame
    if (settled) this.place(facts, view, screen);
    const ratio = devicePixelRatio || 1;
    const again = this.refresh(colours, facts, ratio, now);
    this.showArea(colours, areaOf(view, screen), ratio);
    return again;
  }

  /** Choose the corner that covers the fewest tasks; keep the current one unless another is better. */
  private place(facts: Facts, view: CameraView, screen: Size): void {
    const below = new Map(CORNERS.map((corner) => [corner, this.crowd(corner, facts, view, screen)]));
    for (const corner of CORNERS) {
      if ((below.get(corner) as number) < (below.get(this.corner) as number)) this.corner = corner;
    }
    const [side, level] = this.corner.split(" ");
    for (const edge of ["left", "right", "top", "bottom"] as const) {
      this.canvas.style[edge] = edge === side || edge === level ? `${FROM_EDGE}px` : "auto";
    }
  }

  private crowd(corner: Corner, { scene, ringed }: Facts, view: CameraView, screen: Size): number {
    const width = this.size.width + 2 * FROM_EDGE;
    const height = this.size.height + 2 * FROM_EDGE;
    const x = corner.startsWith("left") ? 0 : screen.width - width;
    const y = corner.endsWith("top") ? 0 : screen.height - height;
    const area: Rect = areaOf({ ...view, x: view.x - x, y: view.y - y }, { width, height });
    const found = scene.grid.search(area);
    const boxes = scene.layout.boxes.filter(({ rect, closed }) =>
      touch(closed ? rect : { ...rect, width: HEADER_WIDTH, height: HEADER_HEIGHT }, area),
    );
    if (corner === "left top" && this.taken()) return Infinity;
    const card = ringed < 0 ? null : scene.cardAround(ringed);
    const shown = found.some((index) => scene.spots[index].tasks.includes(ringed)) || boxes.some((box) => box === card);
    return found.length + WEIGHT_OF_BOX * boxes.length + (shown ? WEIGHT_OF_SHOWN : 0);
  }

  /** Draw boxes and states into the bitmap if they have changed. */
  private refresh(colours: Colours, facts: Facts, ratio: number, now: number): boolean {
    const { scene, version, replay, matches, fades, reach, grouping, ran, t } = facts;
    const { width, height } = this.size;
    const wanted = [scene, version, replay, matches, fades, reach, grouping, colours, ratio, width, height, ran, t];
    const changed = wanted.map((each, index) => each !== this.drawnFor[index]);
    if (!changed.some(Boolean)) return false;
    const onlyTime = !changed.slice(0, -2).some(Boolean);
    if (onlyTime && scene.spots.length > LARGE && now - this.drawnAt < REFRESH) return true;
    this.drawnFor = wanted;
    this.drawnAt = now;
    this.drawStates(colours, facts, ratio);
    return false;
  }

  private drawStates(colours: Colours, facts: Facts, ratio: number): void {
    const { width, height } = this.size;
    const { layout, spots } = facts.scene;
    const context = sized(this.states, this.size, ratio);
    const scale = Math.min((width - 2 * MARGIN) / layout.width, (height - 2 * MARGIN) / layout.height);
    this.scale = scale;
    this.offset = { x: (width - layout.width * scale) / 2, y: (height - layout.height * scale) / 2 };
    const fill = ({ x, y, width: wide, height: high }: Rect, grow: number) =>
      context.fillRect(
        this.offset.x + x * scale - grow,
        this.offset.y + y * scale - grow,
        Math.max(0.8, wide * scale) + 2 * grow,
        Math.max(0.8, high * scale) + 2 * grow,
      );
    layout.boxes.forEach(({ rect, closed }, index) => {
      const state = closed ? countOf(facts, index).state : "waiting";
      context.globalAlpha = closed && cardOpacity(facts, index) < FADED_BELOW ? FADED : 1;
      context.fillStyle = colourOf(colours, state, colours.sunk);
      fill(rect, 0);
    });
    const byState: Record<ShownState, Spot[]> = { waiting: [], planned: [], done: [], ready: [], running: [], failed: [] };
    for (const spot of spots) if (spot.kind !== "stub") byState[stateOf(facts, spot)].push(spot);
    for (const state of ["waiting", "planned", "done", "ready", "running", "failed"] as const) {
      context.fillStyle = colourOf(colours, state, colours.line2);
      for (const spot of byState[state]) {
        context.globalAlpha = opacityOf(facts, spot.task) < FADED_BELOW ? FADED : 1;
        fill(spot.rect, state === "running" || state === "failed" ? 1.5 : 0);
      }
    }
    context.globalAlpha = 1;
    const { lit, spots: outlined = new Map<number, Outline[]>(), cards = outlined } = facts.grouping ?? {};
    const mark = (outlines: readonly Outline[], rect: Rect) => {
      const outline = lit ? outlines.find((each) => each === lit) : outlines.at(-1);
      if (!outline) return;
      context.fillStyle = hueOf(colours, outline);
      fill(rect, lit ? 1 : 0);
    };
    if (lit) cards.forEach((outlines, card) => mark(outlines, layout.boxes[card].rect));
    outlined.forEach((outlines, spot) => mark(outlines, spots[spot].rect));
  }

  private showArea(colours: Colours, area: Rect, ratio: number): void {
    const { width, height } = this.size;
    const context = sized(this.canvas, this.size, ratio);
    context.drawImage(this.states, 0, 0, width, height);
    const left = Math.max(2, this.offset.x + area.x * this.scale);
    const top = Math.max(2, this.offset.y + area.y * this.scale);
    const right = Math.min(width - 2, this.offset.x + (area.x + area.width) * this.scale);
    const bottom = Math.min(height - 2, this.offset.y + (area.y + area.height) * this.scale);
    context.strokeStyle = colours.ink;
    context.lineWidth = 1.2;
    context.strokeRect(left, top, Math.max(2, right - left), Math.max(2, bottom - top));
  }
}

function colourOf(colours: Colours, state: ShownState, waiting: string): string {
  if (state === "waiting") return waiting;
  if (state === "planned") return colours.ink3;
  if (state === "failed") return colours.bad;
  return state === "done" ? colours["done-ink"] : colours.accent;
}

/** Clear a canvas, and resize it only if necessary, because resizing is slow. */
function sized(canvas: HTMLCanvasElement, { width, height }: Size, ratio: number): CanvasRenderingContext2D {
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
