/**
 * Decoded memory: the memory at each moment of the backward, from the columns of engine/memory/timeline.py.
 *
 * Times are counted in tasks: the task at place k lasts from k to k + 1, and event s of its n events (starting at 1)
 * happens at k + s / (n + 1). The forward lasts from -1 to 0. Events after the last task are at the end, or, in a whole
 * step, within one more unit of time. A task's numbers equal Timeline.task_peaks and Timeline.category_levels;
 * tests/widgets/deck/test_deck_memory.py compares them.
 */

import { countUpTo } from "../binary_search.ts";
import { CATEGORIES, type Memory } from "./document.ts";

/** Numbers per change in `Memory.changes`. */
const CHANGE = 4;

/** A storage's category from one time to another. */
export interface Segment {
  category: number;
  from: number;
  to: number;
}

/** Levels as a step function: each level holds from its time on. */
export interface Steps {
  count: number;
  times: Float64Array;
  /** Total level. */
  total: Float64Array;
  /** Level of each category. */
  levels: Float64Array[];
}

export class MemoryLevels {
  readonly places: number;
  /** True if this is the memory of a whole training step, including forward and optimizer. */
  readonly isStep: boolean;
  /** Time of each event. */
  readonly times: Float64Array;
  /** Level before each event, and at the end. */
  readonly levels: Float64Array;
  /** Peak of the backward: the first index in `levels` that reaches it, its place and its time. */
  readonly peak: { event: number; place: number; time: number; bytes: number };
  /** Peak while the task at each place ran; last, the level at the end. */
  readonly taskLevels: Float64Array;
  /** Bytes of each category at that moment of each place; last, those at the end. */
  readonly categoryLevels: Float64Array[];
  /** For each category, 1 if it has bytes at any time of the backward. */
  readonly used: Uint8Array;
  /** Number of storages alive at any time of the backward. */
  readonly storages: number;
  private readonly events: Int32Array;
  private readonly nbytes: Float64Array;
  private readonly changes: Int32Array;
  private fates: { births: Int32Array; deaths: Int32Array } | null = null;
  private forwardBytes: Float64Array[] | null = null;
  private stored: Map<number, number[]> | null = null;

  constructor(readonly memory: Memory) {
    const { starts } = memory;
    this.places = starts.length - 1;
    this.isStep = !!memory.step;
    this.events = Int32Array.from(memory.events);
    this.nbytes = Float64Array.from(memory.nbytes);
    this.changes = Int32Array.from(memory.changes);
    this.times = timesOf(starts, this.events.length, this.isStep);
    this.levels = levelsOf(memory.before, this.events, this.nbytes);
    this.peak = this.findPeak();
    this.taskLevels = new Float64Array(this.places + 1);
    this.categoryLevels = CATEGORIES.map(() => new Float64Array(this.places + 1));
    this.used = new Uint8Array(CATEGORIES.length);
    this.fillPlaces();
    this.storages = memory.nbytes.length - this.goneBefore();
  }

  private findPeak(): MemoryLevels["peak"] {
    const first = this.isStep ? 0 : this.memory.starts[0];
    let event = first;
    for (let at = event + 1; at < this.levels.length; at++) if (this.levels[at] > this.levels[event]) event = at;
    const bytes = this.levels[event];
    if (event === first) return { event, place: -1, time: this.isStep ? -1 : 0, bytes };
    return { event, place: this.placeOf(event - 1), time: this.times[event - 1], bytes };
  }

  /** Return the place of the task that caused an event: -1 before the first task, `places` after the last. */
  placeOf(event: number): number {
    const { starts, event_places } = this.memory;
    if (event_places) return event_places[event];
    return countUpTo(starts, event) - 1;
  }

  private fillPlaces(): void {
    const { starts } = this.memory;
    const walk = new Walk(this.memory, this.events, this.nbytes, this.changes);
    const keep = (place: number) => {
      this.taskLevels[place] = this.levels[walk.event];
      for (let category = 0; category < CATEGORIES.length; category++) {
        this.categoryLevels[category][place] = walk.bytes[category];
      }
    };
    walk.goTo(starts[0]);
    for (let place = 0; place < this.places; place++) {
      walk.changeUpTo(place);
      walk.use(this.used);
      keep(place);
      while (walk.event < starts[place + 1]) {
        walk.next();
        walk.changeUpTo(place);
        walk.use(this.used);
        if (this.levels[walk.event] > this.taskLevels[place]) keep(place);
      }
    }
    walk.goTo(this.events.length);
    walk.changeUpTo(this.places);
    walk.use(this.used);
    keep(this.places);
  }

  private goneBefore(): number {
    const first = this.memory.starts[0];
    let count = 0;
    for (let event = 0; event < first; event++) if (this.events[event] < 0) count++;
    return count;
  }

  /** Number of recorded events of the forward. */
  get forwardEvents(): number {
    return this.memory.before && !this.isStep ? 0 : this.memory.starts[0];
  }

  /** Return the number of forward events up to a time. */
  forwardEvent(time: number): number {
    const count = this.forwardEvents;
    return Math.max(0, Math.min(count, Math.floor((time + 1) * (count + 1) + 1e-6)));
  }

  /** Bytes by category after each number of forward events. */
  get forwardLevels(): Float64Array[] {
    if (!this.forwardBytes) {
      const walk = new Walk(this.memory, this.events, this.nbytes, this.changes);
      this.forwardBytes = [walk.bytes.slice()];
      while (walk.event < this.forwardEvents) {
        walk.next();
        this.forwardBytes.push(walk.bytes.slice());
      }
    }
    return this.forwardBytes;
  }

  /**
   * Return the stack over the backward. In a column with more than two moments only the highest, the lowest and the
   * last are kept: the picture has the same pixels with a few thousand points.
   */
  steps(columnOf: (time: number) => number): Steps {
    const { starts } = this.memory;
    const walk = new Walk(this.memory, this.events, this.nbytes, this.changes);
    walk.goTo(starts[0]);
    walk.changeUpTo(-1);
    const points = new Columns(columnOf);
    points.add(0, this.levels[walk.event], walk.bytes);
    const last = this.isStep ? starts[this.places] : this.events.length + 1;
    while (walk.event < last && walk.advance()) points.add(this.timeOfMove(walk), this.levels[walk.event], walk.bytes);
    return points.finish();
  }

  /** Return the stack over the forward. */
  forwardSteps(columnOf: (time: number) => number): Steps {
    return this.between(0, this.forwardEvents, -1, columnOf);
  }

  /** Return the stack over the part of a whole step after the last task, up to a time. */
  afterSteps(columnOf: (time: number) => number, until = Infinity): Steps {
    const first = this.memory.starts[this.places];
    const last = this.times.findIndex((time, event) => event >= first && time > until);
    return this.between(first, last < 0 ? this.events.length : last, this.places + 1e-9, columnOf);
  }

  private between(first: number, last: number, start: number, columnOf: (time: number) => number): Steps {
    const walk = new Walk(this.memory, this.events, this.nbytes, this.changes);
    walk.goTo(first);
    if (first) walk.changeUpTo(this.places);
    const points = new Columns(columnOf);
    points.add(start, this.levels[first], walk.bytes);
    while (walk.event < last) {
      walk.next();
      points.add(this.times[walk.event - 1], this.levels[walk.event], walk.bytes);
    }
    return points.finish();
  }

  private timeOfMove(walk: Walk): number {
    return walk.changed < 0 ? this.times[walk.event - 1] : this.timeOfChange(walk.changed);
  }

  /** Return the time half-way between the surrounding events of the same task. */
  private timeOfChange(change: number): number {
    const place = this.changes[change * CHANGE + 1];
    if (place < 0) return 0;
    if (place >= this.places) return this.places;
    const { starts } = this.memory;
    const count = starts[place + 1] - starts[place];
    const earlier = Math.max(0, Math.min(count, this.changes[change * CHANGE] - starts[place]));
    return place + (earlier + 0.5) / (count + 1);
  }

  /** Events at which each storage is allocated (-1: before the recording) and freed (-1: never). */
  private get lives(): { births: Int32Array; deaths: Int32Array } {
    if (!this.fates) {
      const births = new Int32Array(this.nbytes.length).fill(-1);
      const deaths = new Int32Array(this.nbytes.length).fill(-1);
      this.events.forEach((number, event) => {
        if (number >= 0) births[number] = event;
        else deaths[~number] = event;
      });
      this.fates = { births, deaths };
    }
    return this.fates;
  }

  /** Return the time a storage was allocated; null if before the recording. */
  born(storage: number): number | null {
    const birth = this.lives.births[storage];
    return birth < 0 || (birth < this.memory.starts[0] && !this.forwardEvents) ? null : this.times[birth];
  }

  /** Return the time a storage was freed; null if it is alive at the end. */
  died(storage: number): number | null {
    const death = this.lives.deaths[storage];
    return death < 0 ? null : this.times[death];
  }

  /** Return the places of the tasks that allocated (-1: earlier) and freed (null: never) a storage. */
  life(storage: number): { born: number; freed: number | null } {
    const { births, deaths } = this.lives;
    const birth = births[storage];
    return {
      born: birth < 0 ? -1 : this.placeOf(birth),
      freed: deaths[storage] < 0 ? null : this.placeOf(deaths[storage]),
    };
  }

  /** Return a storage's categories over its lifetime; if the allocation is unknown, starting with the backward. */
  segments(storage: number): Segment[] {
    const end = this.died(storage) ?? this.places + (this.isStep ? 1 : 0);
    let from = this.born(storage) ?? (this.isStep ? -1 : 0);
    let category = this.memory.born_as[storage];
    const found: Segment[] = [];
    for (const change of this.changesOf(storage)) {
      const at = Math.min(end, this.timeOfChange(change));
      if (at > from) found.push({ category, from, to: at });
      from = Math.max(from, at);
      category = this.changes[change * CHANGE + 3];
    }
    if (end > from || !found.length) found.push({ category, from, to: end });
    return found;
  }

  private changesOf(storage: number): number[] {
    if (!this.stored) {
      this.stored = new Map();
      for (let change = 0; change < this.changes.length / CHANGE; change++) {
        const number = this.changes[change * CHANGE + 2];
        const found = this.stored.get(number);
        if (found) found.push(change);
        else this.stored.set(number, [change]);
      }
    }
    return this.stored.get(storage) ?? [];
  }
}

const decoded = new WeakMap<Memory, MemoryLevels>();

/** Return the decoded memory; each memory is decoded once. */
export function levelsOfMemory(memory: Memory): MemoryLevels {
  let found = decoded.get(memory);
  if (!found) decoded.set(memory, (found = new MemoryLevels(memory)));
  return found;
}

/** Iterator over events and changes that maintains the bytes of each category. */
class Walk {
  /** Next event. */
  event = 0;
  /** Change made by the last `advance`; -1 if it was an event. */
  changed = -1;
  readonly bytes = new Float64Array(CATEGORIES.length);
  private readonly category: Uint8Array;
  private change = 0;

  constructor(
    memory: Memory,
    private readonly events: Int32Array,
    private readonly nbytes: Float64Array,
    private readonly changes: Int32Array,
  ) {
    this.category = Uint8Array.from(memory.born_as);
    for (let number = 0; number < memory.before; number++) this.bytes[this.category[number]] += nbytes[number];
  }

  private get changeEvent(): number {
    const at = this.change * CHANGE;
    return at < this.changes.length ? this.changes[at] : Infinity;
  }

  private makeChange(): void {
    const at = this.change++ * CHANGE;
    const storage = this.changes[at + 2];
    this.bytes[this.category[storage]] -= this.nbytes[storage];
    this.category[storage] = this.changes[at + 3];
    this.bytes[this.category[storage]] += this.nbytes[storage];
  }

  private makeEvent(): void {
    const number = this.events[this.event++];
    if (number >= 0) this.bytes[this.category[number]] += this.nbytes[number];
    else this.bytes[this.category[~number]] -= this.nbytes[~number];
  }

  /** Apply the next event, and all changes before it. */
  next(): void {
    while (this.changeEvent <= this.event) this.makeChange();
    this.makeEvent();
  }

  goTo(event: number): void {
    while (this.event < event) this.next();
  }

  /** Apply the changes before the next event that belong to `place` or earlier places. */
  changeUpTo(place: number): void {
    while (this.changeEvent < this.event || (this.changeEvent === this.event && this.changePlace <= place)) {
      this.makeChange();
    }
  }

  private get changePlace(): number {
    return this.changes[this.change * CHANGE + 1];
  }

  /** Apply one event or one change. Return false at the end. */
  advance(): boolean {
    if (this.changeEvent <= this.event) {
      this.changed = this.change;
      this.makeChange();
      return true;
    }
    this.changed = -1;
    if (this.event >= this.events.length) return false;
    this.makeEvent();
    return true;
  }

  /** Mark the categories that have bytes now. */
  use(used: Uint8Array): void {
    for (let category = 0; category < used.length; category++) if (this.bytes[category]) used[category] = 1;
  }
}

/** Collector of moments that keeps the highest, the lowest and the last of each column. */
export class Columns {
  private readonly found: Moment[] = [];
  private column = NaN;
  private count = 0;
  private readonly highest: Moment = newMoment();
  private readonly lowest: Moment = newMoment();
  private readonly last: Moment = newMoment();

  constructor(private readonly columnOf: (time: number) => number) {}

  add(time: number, level: number, bytes: ArrayLike<number> = []): void {
    const column = this.columnOf(time);
    const isNew = column !== this.column;
    if (isNew) {
      this.flush();
      this.column = column;
    }
    const number = this.count++;
    set(this.last, number, time, level, bytes);
    if (isNew || level > this.highest.level) set(this.highest, number, time, level, bytes);
    if (isNew || level < this.lowest.level) set(this.lowest, number, time, level, bytes);
  }

  private flush(): void {
    if (Number.isNaN(this.column)) return;
    const [first, second] = [this.highest, this.lowest].sort((one, other) => one.number - other.number);
    this.push(first);
    if (second.number > first.number) this.push(second);
    if (this.last.number > second.number) this.push(this.last);
  }

  private push({ number, time, level, bytes }: Moment): void {
    this.found.push({ number, time, level, bytes: bytes.slice() });
  }

  finish(): Steps {
    this.flush();
    const { found } = this;
    return {
      count: found.length,
      times: Float64Array.from(found, ({ time }) => time),
      total: Float64Array.from(found, ({ level }) => level),
      levels: CATEGORIES.map((_, category) => Float64Array.from(found, ({ bytes }) => bytes[category])),
    };
  }
}

interface Moment {
  /** Sequence number, because several moments may have the same time. */
  number: number;
  time: number;
  level: number;
  bytes: Float64Array;
}

function newMoment(): Moment {
  return { number: 0, time: 0, level: 0, bytes: new Float64Array(CATEGORIES.length) };
}

function set(moment: Moment, number: number, time: number, level: number, bytes: ArrayLike<number>): void {
  moment.number = number;
  moment.time = time;
  moment.level = level;
  moment.bytes.set(bytes);
}

/** Return the time of each event. */
export function timesOf(starts: readonly number[], count: number, isStep = false): Float64Array {
  const times = new Float64Array(count);
  for (let event = 0; event < starts[0]; event++) times[event] = (event + 1) / (starts[0] + 1) - 1;
  for (let place = 0; place + 1 < starts.length; place++) {
    const first = starts[place];
    const share = 1 / (starts[place + 1] - first + 1);
    for (let event = first; event < starts[place + 1]; event++) times[event] = place + (event - first + 1) * share;
  }
  const [places, last] = [starts.length - 1, starts[starts.length - 1]];
  if (!isStep) return times.fill(places, last);
  for (let event = last; event < count; event++) times[event] = places + (event - last + 1) / (count - last + 1);
  return times;
}

function levelsOf(before: number, events: Int32Array, nbytes: Float64Array): Float64Array {
  const levels = new Float64Array(events.length + 1);
  let level = 0;
  for (let number = 0; number < before; number++) level += nbytes[number];
  levels[0] = level;
  for (let event = 0; event < events.length; event++) {
    const number = events[event];
    level += number >= 0 ? nbytes[number] : -nbytes[~number];
    levels[event + 1] = level;
  }
  return levels;
}
