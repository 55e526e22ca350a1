/** Upper bounds of text widths for any font, so that names never overflow; see inspector/drawing/svg_text.py. */

// Advance widths of DejaVu Sans in 1/1000 em. It is the widest of the fonts that `system-ui` may select: whatever fits
// by this table also fits in Inter, Segoe UI, Roboto, SF and Cantarell.
const WIDTHS = new Map<string, number>();
for (const [characters, widths] of [
  [
    " !\"#$%&'()*+,-./0123456789:;<=>?@",
    "318 401 460 838 636 950 780 275 390 390 500 838 318 361 318 337 636 636 636 636 636 636 636 636 636 636 337 337" +
      " 838 838 838 531 1000",
  ],
  [
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "684 686 698 770 632 575 775 752 295 295 656 557 863 748 787 603 787 695 635 611 732 684 989 685 611 685",
  ],
  [
    "abcdefghijklmnopqrstuvwxyz",
    "613 635 550 635 615 352 635 634 278 278 579 278 974 634 612 635 635 411 521 392 634 592 818 592 592 525",
  ],
  ["_[]{}|~^`\\×·…–", "500 390 390 636 636 337 838 838 500 337 838 318 1000 500"],
]) {
  const numbers = widths.split(" ").map(Number);
  [...characters].forEach((character, index) => WIDTHS.set(character, numbers[index]));
}

/** Width of weight 600 relative to 400. */
const BOLD = 1.12;
/** Maximum number of characters, since zero-width characters would not limit the length. */
const MOST_CHARACTERS = 400;
const NO_WIDTH = /^[\p{Mn}\p{Me}\p{Cf}]$/u;
/** East Asian and other double-width characters, approximately; a few extra are harmless. */
const WIDE = new RegExp(
  "^[\\p{Emoji_Presentation}\\u1100-\\u115f\\u2329\\u232a\\u2630-\\u2637\\u268a-\\u268f\\u2e80-\\ua4cf\\ua960-\\ua97f" +
    "\\uac00-\\ud7a3\\uf900-\\ufaff\\ufe10-\\ufe6f\\uff01-\\uff60\\uffe0-\\uffe6\\u{16fe0}-\\u{18dff}" +
    "\\u{1aff0}-\\u{1b2ff}\\u{1d300}-\\u{1d37f}\\u{1f200}-\\u{1faff}\\u{20000}-\\u{3fffd}]$",
  "u",
);

/** Return the maximum width of `text` in pixels, in the system's sans serif font of this size. */
export function textWidth(text: string, size = 11, bold = false): number {
  let units = 0;
  for (const character of text) units += unitsOf(character);
  return ((units * size) / 1000) * (bold ? BOLD : 1);
}

/** Return `text`, or the longest start of it that fits into `width` pixels with "…". */
export function shorten(text: string, width: number, size = 11, bold = false): string {
  const most = (width * 1000) / size / (bold ? BOLD : 1);
  const left = most - unitsOf("…");
  let units = 0;
  let end = 0; // end of the part that fits beside "…"
  let kept = 0; // end of the part measured so far
  let count = 0;
  for (const character of text) {
    units += unitsOf(character);
    kept += character.length;
    if (units > most || ++count > MOST_CHARACTERS) return `${text.slice(0, end).replace(/[. ]+$/, "")}…`;
    if (units <= left) end = kept;
  }
  return text;
}

/** Return `text`, or the longest start and end of it that fit into `width` pixels with "…" between them. */
export function shortenMiddle(text: string, width: number, size = 11): string {
  if (shorten(text, width, size) === text) return text;
  const tail = endOf(text, 0.6 * width, size);
  return shorten(text, width - textWidth(tail, size), size) + tail;
}

/** Return `path`, or "…" and the longest end that fits into `width` pixels, since the end identifies the module. */
export function shortenPath(path: string, width: number, bold = false): string {
  const room = width / (bold ? BOLD : 1);
  if (shorten(path, room) === path) return path;
  return `…${endOf(path, room - textWidth("…"), 11).replace(/^[. ]+/, "")}`;
}

/** Return the longest end that fits. */
function endOf(text: string, width: number, size: number): string {
  let left = (width * 1000) / size;
  let tail = "";
  for (const character of [...text.slice(-MOST_CHARACTERS)].reverse()) {
    left -= unitsOf(character);
    if (left < 0) break;
    tail = character + tail;
  }
  return tail;
}

function unitsOf(character: string): number {
  let units = WIDTHS.get(character);
  if (units === undefined) {
    units = NO_WIDTH.test(character) ? 0 : WIDE.test(character) ? 1400 : 1050;
    WIDTHS.set(character, units); // bounded by the number of characters
  }
  return units;
}
