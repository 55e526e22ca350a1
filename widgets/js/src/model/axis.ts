/**
 * The horizontal axis of the timeline: the pixels of tasks, of moments within them, and of events of the forward.
 *
 * Times are counted in tasks: the task at place k lasts from k to k + 1, and the forward from -1 to 0. On the task axis
 * all tasks are equally wide; on the clock axis their widths are proportional to their durations.
 */

import { lastUpTo } from "../binary_search.ts";
import { roundStep } from "../ticks.ts";
import type { Phase } from "./document.ts";
import type { Times } from "./task_times.ts";
import { nanoseconds, nth } from "../format.ts";

export type AxisKind = "task" | "clock";

/** The visible part of the axis, as shares of the whole axis. */
export interface Zoom {
  readonly from: number;
  readonly to: number;
}

export const WHOLE: Zoom = { from: 0, to: 1 };

/** A phase and its position in pixels, even if it is out of view. */
export interface PlacedPhase extends Phase {
  left: number;
  right: number;
}

export interface Tick {
  x: number;
  text: string;
}

export interface AxisOf {
  kind: AxisKind;
  /** Edges of the plot, in CSS pixels from the panel's left edge. */
  left: number;
  right: number;
  places: number;
  phases: readonly Phase[];
  /** Times of the tasks; null if only the task axis is available. */
  times: Times | null;
  /** Time of each event of the forward, nanoseconds; empty if unknown. */
  forward: readonly number[];
  zoom: Zoom;
}

/** Gap between two phases, pixels. */
const GAP = 3;
/** Widths of the other phases as shares of the task axis. */
const SHARES = { forward: 0.2, optimizer: 0.08 };
/** Minimum width of the phase after the backward, so that its name fits, and the largest share that this may use. */
const NAMED = { width: 72, share: 0.18 };
/** Minimum shares of the clock axis: phases that are too short would be invisible otherwise. */
const LEAST = { forward: 0.02, backward: 0.02, optimizer: 0.035 };
/** Minimum distance between two ticks of the task axis, pixels. */
const TASK_TICK = 52;
/** Width of one letter of a tick, and of the space before the next tick. */
const TICK_TEXT = { letter: 6.5, space: 14 };
const CLOCK_TICK = 70;
/** Maximum width of a task, pixels. */
const WIDEST_TASK = 80;

export class Axis {
  readonly kind: AxisKind;
  readonly left: number;
  readonly right: number;
  readonly places: number;
  readonly phases: readonly PlacedPhase[];
  readonly forward: PlacedPhase | undefined;
  readonly backward: PlacedPhase;
  /** The phase after the last task, from `places` to `places` + 1; undefined unless a whole step was recorded. */
  readonly after: PlacedPhase | undefined;
  private readonly times: Times | null;
  private readonly events: readonly number[];

  constructor(of: AxisOf) {
    this.kind = of.times ? of.kind : "task";
    this.left = of.left;
    this.right = Math.max(of.right, of.left + 1);
    this.places = of.places;
    this.times = this.kind === "clock" ? of.times : null;
    this.events = of.forward;
    this.phases = this.placed(of.phases, of.zoom);
    this.forward = this.phases.find(({ name }) => name === "forward");
    this.backward = this.phases.find(({ name }) => name === "backward")!;
    this.after = this.phases.find(({ name }) => name === "optimizer");
  }

  /** Return an axis with the same pixels for another order with its own times. */
  timed(times: Times | null): Axis {
    if (!this.times || !times) return this;
    return Object.assign(Object.create(Axis.prototype), this, { times: { ...times, total: this.times.total } });
  }

  private placed(phases: readonly Phase[], { from, to }: Zoom): PlacedPhase[] {
    const known: readonly Phase[] = phases.some(({ name }) => name === "backward")
      ? phases
      : [...phases, { name: "backward", elapsed_ns: null }];
    const scale = (this.right - this.left) / (to - from);
    const shares = this.shares(known);
    const room = scale - GAP * (known.length - 1);
    let at = this.left - from * scale;
    return known.map((phase, number) => {
      const left = at;
      at += shares[number] * room + GAP;
      return { ...phase, left, right: at - GAP };
    });
  }

  /** Return each phase's share of the axis. */
  private shares(phases: readonly Phase[]): number[] {
    const { times } = this;
    const requested = phases.map(({ name, elapsed_ns }) => {
      if (name === "backward") return null;
      const named = name === "optimizer" ? Math.min(NAMED.share, NAMED.width / (this.right - this.left)) : 0;
      const fixed = Math.max(named, SHARES[name]);
      if (!times) return fixed;
      const all = phases.reduce((sum, each) => sum + (each.name === "backward" ? times.total : (each.elapsed_ns ?? 0)), 0);
      return elapsed_ns ? Math.max(LEAST[name], elapsed_ns / all) : fixed;
    });
    const wanted = requested.reduce((sum: number, share) => sum + (share ?? 0), 0);
    const taken = Math.min(wanted, 1 - LEAST.backward);
    return requested.map((share) => (share === null ? 1 - taken : (share * taken) / (wanted || 1)));
  }

  /** Return the pixel of a time. */
  x(time: number): number {
    const { backward, after } = this;
    if (time < 0) return this.forwardX(time);
    const late = time - this.places;
    if (late >= 0) return late && after ? after.left + (after.right - after.left) * Math.min(1, late) : backward.right;
    const place = Math.floor(time);
    return this.at(this.times ? this.nsOf(place, time - place) / this.times.total : time / this.places);
  }

  /** Return the time at which the task at a place ends; on the clock axis the next task may start later. */
  end(place: number): number {
    if (place >= this.places) return this.backward.right;
    return this.times ? this.at(this.times.end[place] / this.times.total) : this.x(place + 1);
  }

  private at(share: number): number {
    const { left, right } = this.backward;
    return left + (right - left) * share;
  }

  private nsOf(place: number, share: number): number {
    const { start, end } = this.times!;
    return start[place] + share * (end[place] - start[place]);
  }

  /** Return the pixel of a time in the forward. Its events are evenly spaced unless their times were recorded. */
  private forwardX(time: number): number {
    const { forward, events } = this;
    if (!forward) return this.backward.left;
    const width = forward.right - forward.left;
    const last = events.at(-1);
    if (!this.times || !last) return forward.left + width * (Math.max(-1, time) + 1);
    const event = (time + 1) * (events.length + 1) - 1;
    const before = Math.floor(event);
    const from = events[Math.max(0, before)] ?? last;
    const to = events[before + 1] ?? last;
    return forward.left + (width * (from + (event - before) * (to - from))) / last;
  }

  /** Return the time at a pixel. The gap between two phases belongs to the end of the first one. */
  timeAt(pixel: number): number {
    const { forward, backward, after, places } = this;
    if (forward && pixel < backward.left) return this.forwardTime(pixel);
    if (after && pixel >= after.left) return places + Math.min(0.9999, (pixel - after.left) / (after.right - after.left));
    if (pixel >= backward.right) return places;
    const share = Math.max(0, (pixel - backward.left) / (backward.right - backward.left));
    if (!this.times) return share * places;
    const ns = share * this.times.total;
    const place = lastBegun(this.times.start, ns);
    const [start, end] = [this.times.start[place], this.times.end[place]];
    return place + (end > start ? Math.min(0.999, (ns - start) / (end - start)) : 0);
  }

  private forwardTime(pixel: number): number {
    const { left, right } = this.forward!;
    const share = Math.max(0, Math.min(1, (pixel - left) / (right - left)));
    const last = this.events.at(-1);
    if (!this.times || !last) return Math.min(-1e-9, share - 1);
    const event = lastUpTo(this.events, share * last);
    return Math.min(-1e-9, (event + 1) / (this.events.length + 1) - 1);
  }

  /** Return the place of the task at a pixel: 0 to the left of the backward, `places` to its right. */
  placeAt(pixel: number): number {
    return Math.max(0, Math.min(this.places, Math.floor(this.timeAt(pixel))));
  }

  /** Return the nanoseconds since the start of the backward; null on the task axis. */
  ns(time: number): number | null {
    if (!this.times || time < 0) return null;
    const place = Math.floor(time);
    return place >= this.places ? this.times.total : this.nsOf(place, time - place);
  }

  /** Return as many ticks (task numbers or times) as fit. */
  ticks(): Tick[] {
    const found = this.times ? this.clockTicks(this.times.total) : this.taskTicks();
    return found.filter(({ x }) => x >= this.left && x <= this.right);
  }

  private taskTicks(): Tick[] {
    const perTask = (this.backward.right - this.backward.left) / Math.max(this.places, 1);
    const { letter, space } = TICK_TEXT;
    const step = roundStep(Math.max(1, Math.max(TASK_TICK, letter * nth(this.places).length + space) / perTask));
    const first = Math.max(1, Math.ceil(this.timeAt(this.left) / step));
    const found: Tick[] = [];
    for (let number = first * step; number <= this.places; number += step) {
      const x = this.x(number - 0.5);
      if (x > this.right) break;
      if (number === step && x - this.backward.left < TASK_TICK / 2) continue;
      found.push({ x, text: nth(number) });
    }
    return found;
  }

  private clockTicks(total: number): Tick[] {
    const width = this.backward.right - this.backward.left;
    const step = roundStep(Math.max(1, (CLOCK_TICK / width) * total));
    const first = Math.max(0, Math.ceil((((this.left - this.backward.left) / width) * total) / step));
    const found: Tick[] = [];
    for (let number = first; number * step <= total; number++) {
      const x = this.at((number * step) / total);
      if (x > this.right) break;
      found.push({ x, text: number ? nanoseconds(number * step).replace(/\.0+ /, " ") : "0" });
    }
    return found;
  }
}

/**
 * Return the index of the largest entry that is at most `limit`; 0 if there is none. The entries need not be sorted.
 */
function lastBegun(entries: Float64Array, limit: number): number {
  let last = -1;
  entries.forEach((entry, at) => {
    if (entry <= limit && !(entry < entries[last])) last = at;
  });
  return Math.max(0, last);
}

/** Return the range zoomed by `factor` around `about` (a share of the visible part), magnified at most `most` times. */
export function zoomed({ from, to }: Zoom, factor: number, about: number, most: number): Zoom {
  const width = Math.min(1, Math.max(1 / most, (to - from) / factor));
  if (width === 1) return WHOLE;
  const start = from + about * (to - from - width);
  return shifted({ from: start, to: start + width }, 0);
}

/** Return the range shifted by a share of the whole axis, without leaving the axis. */
export function shifted({ from, to }: Zoom, by: number): Zoom {
  const start = Math.max(0, Math.min(1 - (to - from), from + by));
  return { from: start, to: start + (to - from) };
}

/** Return the maximum magnification of an axis with this many tasks. */
export function mostZoom(places: number, width: number): number {
  return Math.max(1, (places * WIDEST_TASK) / Math.max(width, 1));
}

/** Return the zoom that shows only this phase. */
export function zoomOf(axis: Axis, phase: PlacedPhase): Zoom {
  const [first, last] = [axis.phases[0], axis.phases[axis.phases.length - 1]];
  const width = last.right - first.left;
  return { from: (phase.left - first.left) / width, to: (phase.right - first.left) / width };
}
