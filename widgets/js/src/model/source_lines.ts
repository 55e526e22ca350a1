/** Which lines of the code around a source line are shown. */

/** Lines before and after. */
const AROUND = 1;

/**
 * The indices of the lines around line `at`, three where there are three, blank ones at the ends left out; and by how
 * many characters all of them are indented.
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
