/** Canvases as sharp as the screen, and text on them. */

const FAMILY = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

/** The deck's small type; `weight` 400, or 600 for what is named first. */
export function smallType(weight: 400 | 600): string {
  return `${weight} 11px ${FAMILY}`;
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

/** Text cut at its end so that it is at most so wide; "" where nothing readable is left. */
export function cut(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  let [fits, fails] = [0, text.length];
  while (fits + 1 < fails) {
    const middle = (fits + fails) >> 1;
    if (context.measureText(`${text.slice(0, middle).trimEnd()}…`).width <= width) fits = middle;
    else fails = middle;
  }
  return fits < 2 ? "" : `${whole(text.slice(0, fits)).trimEnd()}…`;
}

/** Without half a character at its end. */
function whole(text: string): string {
  const last = text.charCodeAt(text.length - 1);
  return last >= 0xd800 && last < 0xdc00 ? text.slice(0, -1) : text;
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
