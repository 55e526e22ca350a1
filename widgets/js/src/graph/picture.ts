/** The graph as a file: SVG with real shapes and text, or PNG. */

import type { Rect } from "../layout/placed.ts";
import { el } from "../dom.ts";
import type { Colours } from "../view.ts";
import { drawScene } from "./draw_scene.ts";
import type { Facts } from "./facts.ts";
import { grown } from "./grid.ts";
import { CanvasPen, type Pen } from "./pen.ts";
import { SvgPen } from "./svg_pen.ts";

/** Pixels of a PNG to one of the screen. */
const SHARPNESS = 2;
/** Browsers refuse larger canvases. */
const LONGEST_SIDE = 16_000;
const MOST_PIXELS = 120_000_000;
const REFUSED = "the browser has no memory for a picture of this size, an SVG may do";
/** Around the whole graph, pixels. */
const MARGIN = 16;

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
  const { facts, colours, area, scale, bytes, title } = picture;
  const pen = new SvgPen(measure);
  drawScene(pen, colours, facts, { area, scale, bytes, motion: null, share: 1 });
  return pen.document(area, scale, colours.panel, title);
}

export async function pngPicture(picture: PictureOf): Promise<Blob> {
  const { facts, colours, area, scale, bytes } = picture;
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
  drawScene(new CanvasPen(context), colours, facts, { area, scale, bytes, motion: null, share: 1 });
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
