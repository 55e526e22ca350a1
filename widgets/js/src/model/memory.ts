/**
 * Memory decoded: what the columns of engine/memory/timeline.py mean at every moment of the backward.
 *
 * Time counts in tasks: the task at place k takes the time from k to k + 1, and event s of its n (the first is 1)
 * happens at k + s / (n + 1). The forward takes the time from -1 to 0, what follows the last task is at the end, or of a
 * whole step in the time of one more task. A task's numbers
 * agree with Timeline.task_peaks and Timeline.category_levels: tests/widgets/deck/test_deck_memory.py compares them.
 */

import { countUpTo } from "../binary_search.ts";
import { CATEGORIES, type Memory } from "./document.ts";

/** How many numbers one change takes in `Memory.changes`. */
const CHANGE = 4;

/** What a storage was for, from one time to the next. */
export interface Segment {
  category: number;
  from: number;
  to: number;
}

/** Levels, drawn as steps: from each time on they are so high. */
export interface Steps {
  count: number;
  times: Float64Array;
  /** The level. */
  total: Float64Array;
  /** By category what it is made of. */
  levels: Float64Array[];
}

export class MemoryLevels {
  readonly places: number;
  /** Whether it is of a whole training step, forward and optimizer included. */
  readonly isStep: boolean;
  /** By event its time. */
  readonly times: Float64Array;
  /** The level before each event, and last of all the one at the end. */
  readonly levels: Float64Array;
  /** The highest level of the backward: the first index in `levels` that has it, its place and its time. */
  readonly peak: { event: number; place: number; time: number; bytes: number };
  /** By place the highest level while the task ran; after them the level at the end. */
  readonly taskLevels: Float64Array;
  /** By category its bytes at that moment of each place; after them those at the end. */
  readonly categoryLevels: Float64Array[];
  /** By category whether it ever has bytes during the backward. */
  readonly used: Uint8Array;
  /** How many storages are alive at some time of the backward. */
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

  /** The place of the task during which an event happened; -1: before; `places`: after the last one. */
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

  /** How many events of the forward were recorded. */
  get forwardEvents(): number {
    return this.memory.before && !this.isStep ? 0 : this.memory.starts[0];
  }

  /** How many of them have happened at a time in the forward. */
  forwardEvent(time: number): number {
    const count = this.forwardEvents;
    return Math.max(0, Math.min(count, Math.floor((time + 1) * (count + 1) + 1e-6)));
  }

  /** By number of events of the forward that have happened the bytes by category. */
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
   * The stack over the backward. Where more than two moments fall into one column, what is left of them is the highest,
   * the lowest and the last: the picture has the same pixels and a few thousand points.
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

  /** The same over the forward, from its first byte. */
  forwardSteps(columnOf: (time: number) => number): Steps {
    return this.between(0, this.forwardEvents, -1, columnOf);
  }

  /** The same over what follows the last task of a whole step, up to a time. */
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

  /** Half-way between the events of its task around it. */
  private timeOfChange(change: number): number {
    const place = this.changes[change * CHANGE + 1];
    if (place < 0) return 0;
    if (place >= this.places) return this.places;
    const { starts } = this.memory;
    const count = starts[place + 1] - starts[place];
    const earlier = Math.max(0, Math.min(count, this.changes[change * CHANGE] - starts[place]));
    return place + (earlier + 0.5) / (count + 1);
  }

  /** By storage the events of its birth (-1: before all) and of its death (-1: it stays). */
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

  /** When a storage was born; null: before all that was recorded. */
  born(storage: number): number | null {
    const birth = this.lives.births[storage];
    return birth < 0 || (birth < this.memory.starts[0] && !this.forwardEvents) ? null : this.times[birth];
  }

  /** When a storage was freed; null: it is alive at the end. */
  died(storage: number): number | null {
    const death = this.lives.deaths[storage];
    return death < 0 ? null : this.times[death];
  }

  /** The place of the task in which a storage was born (-1: before), and in which it was freed (null: it stays). */
  life(storage: number): { born: number; freed: number | null } {
    const { births, deaths } = this.lives;
    const birth = births[storage];
    return {
      born: birth < 0 ? -1 : this.placeOf(birth),
      freed: deaths[storage] < 0 ? null : this.placeOf(deaths[storage]),
    };
  }

  /** What a storage was for, over its life; from the start of the backward if nothing tells when it was born. */
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

/** The memory decoded, once. */
export function levelsOfMemory(memory: Memory): MemoryLevels {
  let found = decoded.get(memory);
  if (!found) decoded.set(memory, (found = new MemoryLevels(memory)));
  return found;
}

/** Goes through events and changes in order and knows the bytes by category. */
class Walk {
  /** The event that comes next. */
  event = 0;
  /** The change that `advance` made last; -1: it was an event. */
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

  /** One event on, with all changes before it. */
  next(): void {
    while (this.changeEvent <= this.event) this.makeChange();
    this.makeEvent();
  }

  goTo(event: number): void {
    while (this.event < event) this.next();
  }

  /** Makes the changes before the next event that belong to this place or to earlier ones. */
  changeUpTo(place: number): void {
    while (this.changeEvent < this.event || (this.changeEvent === this.event && this.changePlace <= place)) {
      this.makeChange();
    }
  }

  private get changePlace(): number {
    return this.changes[this.change * CHANGE + 1];
  }

  /** One event or one change on. Returns whether there was one. */
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

  /** Marks the categories that have bytes now. */
  use(used: Uint8Array): void {
    for (let category = 0; category < used.length; category++) if (this.bytes[category]) used[category] = 1;
  }
}

/** Collects moments, and keeps of each column the highest, the lowest and the last. */
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
  /** Counts moments: several may be at one time. */
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

/** By event its time. */
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
