/** Choice of the source lines shown around a line. */

/** Number of lines before and after. */
const AROUND = 1;

/**
 * Return the indices of up to three lines around line `at`, without blank lines at the ends, and their common
 * indentation in characters.
 */
export function linesAround(code: readonly string[], at: number): { shown: number[]; indent: number } {
  if (!(at in code)) return { shown: [], indent: 0 };
  const blank = (index: number) => !code[index]?.trim();
  let from = blank(at - AROUND) ? at : at - AROUND;
  let to = blank(at + AROUND) ? at : at + AROUND;
  if (to - from < 2 * AROUND && !blank(from - 1)) from--;
  if (to - from < 2 * AROUND && !blank(to + 1)) to++;
  const shown = Array.from({ length: to - from + 1 }, (_, index) => from + index);
  const indents = shown.filter((index) => !blank(index)).map((index) => code[index].search(/\S/));
  return { shown, indent: indents.length ? Math.min(...indents) : 0 };
}
