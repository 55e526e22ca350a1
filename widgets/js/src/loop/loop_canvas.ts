/** Drawing helpers of the canvas: text, bad cells and the ramp of greys. */

import { firstWhere } from "../binary_search.ts";
import { fit, FONT, hatch } from "../canvas.ts";

export type Colours = Record<string, string>;

const NAMES = "panel sunk line line2 ink ink2 ink3 accent accent-ink bad warn pgrad held work saved other param state".split(" ");

/** Return the page's current colours. */
export function coloursOf(host: Element): Colours {
  const style = getComputedStyle(host);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Resize and clear a canvas, in CSS pixels at the screen's resolution. */
export function penOf(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  return fit(canvas, width, height);
}

export function write(
  pen: CanvasRenderingContext2D,
  text: string,
  x: number,
  y: number,
  colour: string,
  { align = "left" as CanvasTextAlign, weight = 400, size = 11, most = Infinity } = {},
): number {
  pen.font = `${weight} ${size}px ${FONT}`;
  pen.fillStyle = colour;
  pen.textAlign = align;
  let shown = text;
  if (pen.measureText(text).width > most) {
    // the end of a path distinguishes modules
    const from = firstWhere(text.length, (at) => pen.measureText(`…${text.slice(at)}`).width <= most);
    shown = `…${text.slice(from)}`;
  }
  pen.fillText(shown, x, y);
  return pen.measureText(shown).width;
}

/** Draw a NaN or Inf cell; the mark does not rely on colour alone. */
export function badCell(pen: CanvasRenderingContext2D, x: number, y: number, wide: number, tall: number, c: Colours): void {
  pen.fillStyle = c.bad;
  pen.fillRect(x, y, wide, tall);
  const arm = Math.min(wide, tall) / 2 - 2.2;
  if (arm <= 1.6) return void (Math.min(wide, tall) >= 5 && hatch(pen, [x, y, wide, tall], c.panel, 4));
  const [middle, centre] = [x + wide / 2, y + tall / 2];
  pen.strokeStyle = c.panel;
  pen.lineWidth = 1.2;
  pen.beginPath();
  for (const way of [1, -1]) {
    pen.moveTo(middle - arm, centre - way * arm);
    pen.lineTo(middle + arm, centre + way * arm);
  }
  pen.stroke();
}

const SHADES = 64;

/** Return a ramp of greys from `sunk` to `ink`. Colour is reserved for problems. */
export function rampOf(c: Colours): (share: number) => string {
  const [low, high] = [c.sunk, c.ink].map((colour) => parseInt(colour.slice(1), 16));
  const shades = Array.from({ length: SHADES + 1 }, (_, at) => {
    const share = 0.07 + 0.93 * (at / SHADES) ** 1.15; // the smallest value must differ from an empty cell
    const part = (bits: number) => Math.round(((low >> bits) & 255) * (1 - share) + ((high >> bits) & 255) * share);
    return `rgb(${part(16)},${part(8)},${part(0)})`;
  });
  return (share) => shades[Math.round(SHADES * Math.max(0, Math.min(1, share)))];
}
