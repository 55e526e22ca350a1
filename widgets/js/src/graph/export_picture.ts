/** The graph as a file: SVG with real shapes and text, or PNG. */

import type { Rect } from "../layout/layout_types.ts";
import { el } from "../dom.ts";
import { signsOf } from "../model/recompute.ts";
import type { Colours } from "../view_types.ts";
import { drawSign, SIGN_WORDS } from "./draw_recompute_badges.ts";
import { drawScene } from "./draw_scene.ts";
import { LABEL } from "./draw_task.ts";
import type { Facts } from "./frame_state.ts";
import { grown } from "./spatial_index.ts";
import { CanvasPen, type Pen, type Span } from "./pen.ts";
import { SvgPen } from "./svg_pen.ts";

/** Pixels of a PNG to one of the screen. */
const SHARPNESS = 2;
/** Browsers refuse larger canvases. */
const LONGEST_SIDE = 16_000;
const MOST_PIXELS = 120_000_000;
const REFUSED = "the browser has no memory for a picture of this size, an SVG may do";
/** Around the whole graph, pixels. */
const MARGIN = 16;
/** Height of the line that says what signs mean, pixels. */
const LEGEND = 28;

export interface PictureOf {
  facts: Facts;
  colours: Colours;
  bytes: Float64Array;
  /** What of the graph, and at which scale. */
  area: Rect;
  scale: number;
  title: string;
}

/** The area and scale of the whole graph at its own size. */
export function wholeOf({ scene }: Facts): { area: Rect; scale: number } {
  const { width, height } = scene.layout;
  return { area: grown({ x: 0, y: 0, width, height }, MARGIN), scale: 1 };
}

/** `measure` tells how wide text is. */
export function svgPicture(picture: PictureOf, measure: Pen["measure"]): string {
  const { scale, colours, title } = picture;
  const pen = new SvgPen(measure);
  draw(pen, picture);
  return pen.document(withLegend(picture), scale, colours.panel, title);
}

function draw(pen: Pen, picture: PictureOf): void {
  const { facts, colours, area, scale, bytes } = picture;
  drawScene(pen, colours, facts, { area, scale, bytes, motion: null, share: 1 });
  drawLegend(pen, picture);
}

/** With what the signs of recomputation mean below it, where there are any. */
function withLegend({ facts, area, scale }: PictureOf): Rect {
  return facts.marks.size ? { ...area, height: area.height + LEGEND / scale } : area;
}

function drawLegend(pen: Pen, { facts, colours, area, scale }: PictureOf): void {
  const signs = signsOf(facts.marks.values());
  if (!signs.length) return;
  const pixel = 1 / scale;
  const top = area.y + area.height;
  pen.rounded({ x: area.x, y: top, width: area.width, height: LEGEND * pixel }, 0, { fill: colours.panel });
  const y = top + (LEGEND / 2) * pixel;
  let x = area.x + MARGIN * pixel;
  for (const sign of signs) {
    drawSign(pen, colours, sign, x + 6 * pixel, y, pixel);
    const words: Span = { text: SIGN_WORDS[sign], fill: colours.ink2, size: LABEL * pixel, weight: 400 };
    pen.text(x + 18 * pixel, y, [words]);
    x += 18 * pixel + pen.measure([words]) + 16 * pixel;
  }
}

export async function pngPicture(picture: PictureOf): Promise<Blob> {
  const { colours, scale } = picture;
  const area = withLegend(picture);
  const most = Math.sqrt(MOST_PIXELS / (area.width * area.height));
  const ratio = Math.min(scale * SHARPNESS, LONGEST_SIDE / Math.max(area.width, area.height), most);
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(area.width * ratio);
  canvas.height = Math.ceil(area.height * ratio);
  const context = canvas.getContext("2d");
  if (!context) throw new Error(REFUSED);
  context.fillStyle = colours.panel;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.setTransform(ratio, 0, 0, ratio, -area.x * ratio, -area.y * ratio);
  draw(new CanvasPen(context), picture);
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error(REFUSED))), "image/png"),
  );
}

/** Saves through a link: works in JupyterLab and in a page from a file alike. */
export function download(content: Blob, name: string): void {
  const url = URL.createObjectURL(content);
  el("a", { href: url, download: name }).click();
  // The browser reads the blob after the click has returned.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** `gpt-heap-task-58.svg`, or `-end.svg`, of any title: nothing that a file system minds. */
export function fileName(title: string, policy: string, moment: string, extension: string): string {
  const clean = (text: string) => text.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^[-.]+|[-.]+$/g, "").slice(0, 60);
  const parts = [clean(title) || "backward", clean(policy), moment];
  return `${parts.filter(Boolean).join("-")}.${extension}`;
}
