/** Formatting of numbers and names. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Format bytes: `0 B`, `512 B`, `1.5 KiB`, `256 KiB`, `51.0 MiB`, like inspector/text/sizes_and_counts.py. */
export function size(bytes: number): string {
  let scale = 0;
  while (scale + 1 < UNITS.length && Math.abs(bytes) >= (scale ? 999.5 * 1024 ** scale : 1024)) scale++;
  if (scale === 0) return `${bytes} B`;
  if (scale === 1 && bytes % 1024 === 0) return `${bytes / 1024} KiB`;
  return `${(bytes / 1024 ** scale).toFixed(1)} ${UNITS[scale]}`;
}

/** Format a number with three significant digits and a true minus sign; `–` if unknown. */
export function number(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e4 || size < 1e-3 ? value.toExponential(1).replace("e+", "e") : String(+value.toPrecision(3));
  return text.replaceAll("-", "−");
}

/** Format a shape: `2×512`; `scalar`. */
export function shape(sizes: readonly number[] | null): string {
  return sizes === null ? "nested" : sizes.length ? sizes.join("×") : "scalar";
}

// Number.toLocaleString creates a formatter for each call, which is too slow while drawing.
const GROUPED = new Intl.NumberFormat("en-US");

/** Format an integer with separators: `12,345`. */
export function grouped(amount: number): string {
  return GROUPED.format(amount);
}

/** Format a task's place in its run, `1st`, `2nd`, `53rd`, `1,011th`, like inspector/text/sizes_and_counts.py. */
export function nth(place: number): string {
  const ending = Math.floor(place / 10) % 10 === 1 ? undefined : ["th", "st", "nd", "rd"][place % 10];
  return `${grouped(place)}${ending ?? "th"}`;
}

/** Format a duration with three digits and a unit: `840 ns`, `25.1 µs`, `4.10 ms`, `1.25 s`. */
export function nanoseconds(amount: number): string {
  let [value, unit] = [amount, "ns"];
  for (const larger of ["µs", "ms", "s"]) {
    if (value < 999.5) break;
    [value, unit] = [value / 1000, larger];
  }
  if (unit === "ns") return `${Math.round(value)} ns`;
  return `${value >= 999.5 ? grouped(Math.round(value)) : value.toPrecision(3)} ${unit}`;
}

/** Format a duration in milliseconds, `5.2 ms`, `0.04 ms`, like engine/recompute/planned_recompute.py. */
export function milliseconds(nanoseconds: number): string {
  const amount = nanoseconds / 1e6;
  return `${amount >= 1 ? amount.toFixed(1) : String(+amount.toPrecision(2))} ms`;
}

/** Format a count with its noun: `1 task`, `12,345 tasks`. */
export function count(amount: number, noun: string): string {
  return `${grouped(amount)} ${noun}${amount === 1 ? "" : "s"}`;
}

/** Format a coordinate to a tenth, with as few characters as possible. */
export function tenths(value: number): string {
  return String(Math.round(value * 10) / 10);
}

/** Format a coordinate to a hundredth, with as few characters as possible. */
export function hundredths(value: number): string {
  return String(Math.round(value * 100) / 100);
}
