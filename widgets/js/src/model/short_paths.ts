/** Module paths shortened for narrow rows: the part that distinguishes rows of the same name comes first. */

/** A part at which a shortened path may start; a number or `*` alone would be meaningless. */
const NAMED = /[^\d*]/;

/**
 * Return the spellings of each row's path, longest first: `encoder.layers.*.attn`, `…layers.*.attn`, ... The shortest
 * is `encoder…attn` if there is also a `decoder.layers.*.attn`.
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
