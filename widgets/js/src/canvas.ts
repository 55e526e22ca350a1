/** Canvases as sharp as the screen, and text on them. */

export const FONT = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

/** The deck's small type; `weight` 400, or 600 for what is named first. */
export function smallType(weight: 400 | 600): string {
  return `${weight} 11px ${FONT}`;
}

/** An empty canvas of this size in CSS pixels, which are the units of what is drawn. */
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

/** Of `share` one colour and for the rest another one: opaque, so that layers don't shine through. */
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

/** Red, green and blue of any CSS colour, as the browser reads it. */
function channels(colour: string): number[] {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true })!;
  probe.fillStyle = colour;
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

/** Lines across a rectangle, upwards to the right, `gap` apart; `shift` moves all of them to the left. */
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
