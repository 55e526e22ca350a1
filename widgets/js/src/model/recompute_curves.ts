/** The memory curves that a recompute plan predicts, without and with the plan. */

import type { Curve, Schedule } from "./document.ts";
import { Columns, type Steps, timesOf } from "./memory.ts";

export class CurveLevels {
  /** The time of each event, as in `MemoryLevels`. */
  private readonly times: Float64Array;
  /** The highest level during each task, in order; then the level at the end. */
  readonly taskLevels: Float64Array;
  readonly peak: number;

  constructor(readonly curve: Curve) {
    const { starts, levels } = curve;
    this.times = timesOf(starts, levels.length - 1);
    const places = starts.length - 1;
    this.taskLevels = new Float64Array(places + 1);
    for (let place = 0; place < places; place++) {
      let highest = 0;
      for (let at = starts[place]; at <= starts[place + 1]; at++) highest = Math.max(highest, levels[at]);
      this.taskLevels[place] = highest;
    }
    this.taskLevels[places] = levels[levels.length - 1];
    this.peak = levels.reduce((most, level) => Math.max(most, level), 0);
  }

  /** Return the curve, reduced to the highest, the lowest and the last level in each column. */
  steps(columnOf: (time: number) => number): Steps {
    const points = new Columns(columnOf);
    this.curve.levels.forEach((level, before) => points.add(before ? Math.max(0, this.times[before - 1]) : 0, level));
    return points.finish();
  }
}

const decoded = new WeakMap<Curve, CurveLevels>();

export function levelsOfCurve(curve: Curve): CurveLevels {
  let found = decoded.get(curve);
  if (!found) decoded.set(curve, (found = new CurveLevels(curve)));
  return found;
}

/** Title and short name of each curve. */
export const CURVES: Record<Curve["name"], { title: string; name: string }> = {
  plain: { title: "without the plan", name: "without" },
  planned: { title: "as planned", name: "planned" },
};

/** Return the curves to draw. If the memory shown is the plan's own, its curve would coincide with that. */
export function curvesOf({ curves, memory }: Schedule): Curve[] {
  return (curves ?? []).filter(({ name }) => name === "plain" || memory?.basis !== "calibrated");
}
