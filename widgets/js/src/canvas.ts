/** Canvases at the screen's resolution, and their fonts, colours and hatching. */

export const FONT = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

/** Return the font of the deck's small text; `weight` is 600 for emphasis. */
export function smallType(weight: 400 | 600): string {
  return `${weight} 11px ${FONT}`;
}

/** Resize and clear a canvas. Drawing uses CSS pixels. */
export function fit(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const context = canvas.getContext("2d")!;
  const ratio = devicePixelRatio;
  const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
  context.setTransform(1, 0, 0, 1, 0, 0);
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
  } else context.clearRect(0, 0, across, down);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.textBaseline = "middle";
  return context;
}

const mixes = new Map<string, string>();

/**
 * Return the opaque mix of two colours, `share` of the first. A transparent colour would let lower layers shine
 * through.
 */
export function mixed(colour: string, ground: string, share: number): string {
  const key = `${colour} ${ground} ${share}`;
  let mix = mixes.get(key);
  if (!mix) {
    const [one, other] = [channels(colour), channels(ground)];
    mix = `rgb(${one.map((value, index) => Math.round(value * share + other[index] * (1 - share))).join(" ")})`;
    mixes.set(key, mix);
  }
  return mix;
}

/** Return the red, green and blue of any CSS colour, as parsed by the browser. */
function channels(colour: string): number[] {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true })!;
  probe.fillStyle = colour;
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

/** Draw diagonal lines across a rectangle, rising to the right, `gap` apart and shifted left by `shift`. */
export function hatch(
  pen: CanvasRenderingContext2D,
  [x, y, width, height]: readonly [number, number, number, number],
  colour: string,
  gap: number,
  shift = 0,
): void {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.beginPath();
  for (let at = x - height - shift; at < x + width; at += gap) {
    pen.moveTo(at, y + height);
    pen.lineTo(at + height, y);
  }
  pen.stroke();
  pen.restore();
}
