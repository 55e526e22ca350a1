import assert from "node:assert/strict";
import { test } from "node:test";
import { momentOf } from "../src/views/memory_legend.ts";
import { CATEGORIES, type Memory } from "../src/model/document.ts";
import { MemoryLevels } from "../src/model/memory.ts";
import { peakWords } from "../src/views/memory_legend.ts";

const [SAVED, BUFFER, GRADIENT] = [0, 1, 2];

/** Storage 0 exists before; task 0 allocates 1 and 2 and frees 2, task 1 turns 1 into a .grad and frees 0. */
function small(): Memory {
  return {
    device: "cpu",
    basis: "measured",
    estimates: [],
    before: 1,
    nbytes: [10, 20, 5],
    events: [1, 2, ~2, ~0],
    starts: [0, 3, 4],
    born_as: [SAVED, BUFFER, BUFFER],
    changes: [3, 1, 1, GRADIENT],
    peak: "",
    forward_ns: [],
    rows: [],
  };
}

/** Return the memory of this many tasks, each of which allocates and frees some storages with random sizes. */
function large(places: number, perPlace: number): Memory {
  let seed = 7;
  const next = (limit: number) => (seed = (seed * 48271) % 2147483647) % limit;
  const memory: Memory = { ...small(), before: 0, nbytes: [], events: [], starts: [0], born_as: [], changes: [] };
  const alive: number[] = [];
  for (let place = 0; place < places; place++) {
    for (let step = 0; step < perPlace; step++) {
      if (alive.length && next(2)) memory.events.push(~alive.splice(next(alive.length), 1)[0]);
      else {
        alive.push(memory.nbytes.length);
        memory.events.push(memory.nbytes.length);
        memory.born_as.push(next(CATEGORIES.length));
        memory.nbytes.push(next(1000));
      }
    }
    memory.starts.push(memory.events.length);
  }
  return memory;
}

test("levels, times, the peak and each task's highest level", () => {
  const levels = new MemoryLevels(small());
  assert.deepEqual([...levels.levels], [10, 30, 35, 30, 20]);
  assert.deepEqual([...levels.times], [0.25, 0.5, 0.75, 1.5]);
  assert.deepEqual(levels.peak, { event: 2, place: 0, time: 0.5, bytes: 35 });
  assert.deepEqual([...levels.taskLevels], [35, 30, 20]);
  assert.deepEqual([...levels.categoryLevels[SAVED]], [10, 10, 0]);
  assert.deepEqual([...levels.categoryLevels[BUFFER]], [25, 0, 0]);
  assert.deepEqual([...levels.categoryLevels[GRADIENT]], [0, 20, 20]);
  assert.deepEqual([...levels.used], [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
});

test("a whole step has its forward and what follows the last task, whatever is there before", () => {
  const step: Memory = {
    ...small(), before: 2, nbytes: [100, 10, 20, 5], born_as: [9, 10, SAVED, SAVED], events: [2, ~2, 3, ~3, ~1], starts: [1, 2],
    changes: [], step: true,
  };
  const levels = new MemoryLevels(step);
  assert.equal(levels.forwardEvents, 1);
  assert.deepEqual([...levels.levels], [110, 130, 110, 115, 110, 100]);
  assert.deepEqual([...levels.times], [-0.5, 0.5, 1.25, 1.5, 1.75]);
  assert.deepEqual(levels.peak, { event: 1, place: -1, time: -0.5, bytes: 130 });
  assert.deepEqual([...levels.forwardSteps((time) => time).levels[9]], [100, 100]);
  const after = levels.afterSteps((time) => time);
  assert.deepEqual([...after.levels[SAVED]], [0, 5, 0, 0]);
  assert.deepEqual([...after.levels[10]], [10, 10, 10, 0]);
  assert.equal(momentOf(levels, levels, 1.3).level, 115);
  assert.deepEqual([...levels.steps((time) => time).levels[SAVED]], [20, 0]);
  assert.deepEqual(levels.segments(0), [{ category: 9, from: -1, to: 2 }]);
});

test("a storage's bar has the colours of what it was for", () => {
  const levels = new MemoryLevels(small());
  assert.deepEqual(levels.segments(0), [{ category: SAVED, from: 0, to: 1.5 }]);
  assert.deepEqual(levels.segments(1), [
    { category: BUFFER, from: 0.25, to: 1.25 },
    { category: GRADIENT, from: 1.25, to: 2 },
  ]);
  assert.deepEqual(levels.life(0), { born: -1, freed: 1 });
  assert.deepEqual(levels.life(1), { born: 0, freed: null });
});

test("a backward that starts with its peak has it before its first task", () => {
  const alone = { nbytes: [10], born_as: [SAVED], events: [~0], starts: [0, 0, 1], changes: [] };
  const levels = new MemoryLevels({ ...small(), ...alone });
  assert.deepEqual(levels.peak, { event: 0, place: -1, time: 0, bytes: 10 });
  assert.equal(peakWords(levels, null, () => "").join(""), "peak 10 B: before the first task");
});

test("few moments are drawn one by one", () => {
  const { count, times, levels } = new MemoryLevels(small()).steps((time) => Math.floor(500 * time));
  assert.deepEqual([...times.slice(0, count)], [0, 0.25, 0.5, 0.75, 1.25, 1.5]);
  assert.deepEqual([...levels[BUFFER].slice(0, count)], [0, 20, 25, 20, 0, 0]);
  assert.deepEqual([...levels[GRADIENT].slice(0, count)], [0, 0, 0, 0, 20, 20]);
});

test("of many moments each column keeps its highest, its lowest and its last", () => {
  const memory = large(5000, 8);
  const decoded = new MemoryLevels(memory);
  const columns = 300;
  const { count, times, levels } = decoded.steps((time) => Math.floor(time * (columns / decoded.places)));
  assert.ok(count <= 3 * columns + 3 && count > columns);
  const columnOf = (time: number) => Math.floor(time * (columns / decoded.places));
  const extremes = (found: Iterable<[number, number]>) => {
    const all = new Map<number, [number, number, number]>();
    for (const [time, level] of found) {
      const [least, most] = all.get(columnOf(time)) ?? [level, level];
      all.set(columnOf(time), [Math.min(least, level), Math.max(most, level), level]);
    }
    return all;
  };
  const drawn: [number, number][] = [];
  for (let at = 0; at < count; at++) drawn.push([times[at], levels.reduce((sum, column) => sum + column[at], 0)]);
  const every: [number, number][] = [[0, decoded.levels[0]]];
  memory.events.forEach((_, event) => every.push([decoded.times[event], decoded.levels[event + 1]]));
  assert.deepEqual(extremes(drawn), extremes(every));
  assert.equal(Math.max(...drawn.map(([, level]) => level)), decoded.peak.bytes);
  for (let at = 1; at < count; at++) assert.ok(times[at] >= times[at - 1]);
});

test("400,000 events of 100,000 tasks add up one by one", () => {
  const memory = large(100_000, 4);
  const decoded = new MemoryLevels(memory);
  let bytes = decoded.levels[0];
  let most = bytes;
  let differ = 0;
  memory.events.forEach((event, at) => {
    bytes += event < 0 ? -memory.nbytes[~event] : memory.nbytes[event];
    most = Math.max(most, bytes);
    if (bytes !== decoded.levels[at + 1]) differ++;
  });
  assert.equal(differ, 0);
  assert.equal(decoded.peak.bytes, most);
});
