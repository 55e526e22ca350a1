/** Round numbers for the ticks of an axis. */

/** Round up to 1, 2 or 5 times a power of ten. */
export function roundStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(least));
  return ([1, 2, 5].find((each) => each * power >= least * (1 - 1e-9)) ?? 10) * power;
}

/** Return at most `count` equal steps of a power of two, from 0 up to the highest size. */
export function byteTicks(highest: number, count: number): number[] {
  const step = Math.max(1, 2 ** Math.ceil(Math.log2(highest / count)));
  return Array.from({ length: Math.floor(highest / step) + 1 }, (_, at) => at * step);
}
