/** Paths of modules for rows that have less room: what tells each from the others of its name comes first. */

/** Where a path may begin so that no number or `*` stands alone. */
const NAMED = /[^\d*]/;

/**
 * By row how its path may be written, the longest first: `encoder.layers.*.attn`, `…layers.*.attn`, ..., and at the
 * least `encoder…attn` where `decoder.layers.*.attn` is there, too.
 */
export function pathsOf(rows: readonly { name: string; module: string }[]): string[][] {
  return rows.map(({ name, module }) => {
    const parts = module.split(".");
    const from = (at: number) => parts.slice(at).join(".");
    const last = Math.max(0, parts.findLastIndex((part) => NAMED.test(part)));
    const others = rows.filter((row) => row.name === name && row.module !== module);
    let at = last;
    while (at > 0 && others.some((row) => `.${row.module}`.endsWith(`.${from(at)}`))) at--;
    const shorter = parts.slice(1, at + 1).map((_, index) => `…${from(index + 1)}`);
    return [module, ...shorter, ...(at < last ? [`${parts[at]}…${from(last)}`] : [])];
  });
}
