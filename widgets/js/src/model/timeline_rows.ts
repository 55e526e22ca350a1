/** Heights of the timeline's rows, and the order in which they fold if space is short. */

/** Vertical positions, pixels from the timeline's top. */
export interface Bands {
  lanes: { top: number; height: number }[];
  /** True if the lanes show their queues. */
  hasQueues: boolean;
  memory: { top: number; bottom: number };
  /** The chart below the heading. */
  chart: { top: number; bottom: number };
  /** `rows` is 0 if only the heading is shown. */
  lifetimes: { top: number; rows: number };
  ruler: number;
  height: number;
}

export const PHASES = 22;
export const RULER = 16;
export const HEADING = 18;
export const ROW = 14;
/** Height of a lane's bars. */
export const BAR = 12;

const LANE = 30;
const LANES = 34;
const BARE_LANE = 18;
const LEAST_CHART = 72;
const MEMORY_SHARE = 0.54;
const ROWS = { least: 3, most: 24 };

/**
 * Return the rows of a timeline of this height. `lifetimes` is the number of lifetime rows; `isOpen` is the user's
 * choice to show them, or null; `legend` is the height of the memory legend, which is shown completely if that only
 * costs lifetime rows; `peakLines` is the number of lines of the peak's sentence above the chart.
 */
export function bandsOf(height: number, lanes: number, lifetimes: number, isOpen: boolean | null, legend = 0, peakLines = 1): Bands {
  const full = lanes > 1 ? LANES : LANE;
  const free = (lane: number) => height - PHASES - RULER - lanes * lane;
  const memory = (lane: number, rows: number) => free(lane) - HEADING - rows * ROW;
  const fits = (lane: number, rows: number) => memory(lane, rows) >= HEADING + LEAST_CHART;
  const least = Math.min(ROWS.least, lifetimes);
  let rows = Math.floor((free(full) * (1 - MEMORY_SHARE) - HEADING) / ROW);
  rows = Math.max(least, Math.min(ROWS.most, lifetimes, rows));
  while (rows > least && (!fits(full, rows) || memory(full, rows) < HEADING + legend)) rows--;
  if (isOpen === false || (isOpen === null && !fits(full, rows))) rows = 0;
  const hasQueues = fits(full, rows);
  const lane = hasQueues ? full : BARE_LANE;
  const top = PHASES + lanes * lane;
  const bottom = height - RULER - HEADING - rows * ROW;
  return {
    lanes: Array.from({ length: lanes }, (_, number) => ({ top: PHASES + number * lane, height: lane })),
    hasQueues,
    memory: { top, bottom },
    chart: { top: top + HEADING + (peakLines - 1) * ROW, bottom: Math.max(bottom - 6, top + HEADING + 1) },
    lifetimes: { top: bottom, rows },
    ruler: height - RULER,
    height,
  };
}
