/** The timeline: its axis, the activity of a device, and the heights of its rows. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { barsOf, drawLifetimes } from "../src/charts/lifetimes.ts";
import type { Picture } from "../src/charts/timeline_picture.ts";
import { Axis, type AxisOf, mostZoom, shifted, WHOLE, zoomed, zoomOf } from "../src/model/axis.ts";
import { bandsOf } from "../src/model/timeline_rows.ts";
import { timesOf } from "../src/model/task_times.ts";
import type { LifetimeRow, Phase } from "../src/model/document.ts";
import { DeckGraph } from "../src/model/graph.ts";
import { lanesOf } from "../src/model/device_lanes.ts";
import { MemoryLevels } from "../src/model/memory.ts";
import { Replay } from "../src/model/replay.ts";
import { nanoseconds } from "../src/format.ts";
import { smallDocument } from "./small_document.ts";

const FORWARD: Phase = { name: "forward", elapsed_ns: 50 };
const BACKWARD: Phase = { name: "backward", elapsed_ns: 100 };
const OPTIMIZER: Phase = { name: "optimizer", elapsed_ns: 10 };

/** Four tasks in 100 ns, with a pause before the last one, and a forward of three events. */
const times = {
  start: Float64Array.of(0, 10, 40, 80), end: Float64Array.of(10, 40, 50, 100), total: 100, isWhole: true, still: [],
};

function axis(more: Partial<AxisOf> = {}): Axis {
  return new Axis({
    kind: "task", left: 100, right: 1100, places: 4, phases: [FORWARD, BACKWARD], times, forward: [0, 40, 50], zoom: WHOLE,
    ...more,
  });
}

test("on the task axis the forward has a fifth, the optimizer its share, and tasks are equally wide", () => {
  const { phases } = axis({ phases: [FORWARD, BACKWARD, OPTIMIZER] });
  const widths = phases.map(({ left, right }) => right - left);
  const room = 1000 - 2 * 3;
  assert.deepEqual(phases.map(({ name }) => name), ["forward", "backward", "optimizer"]);
  widths.forEach((width, at) => assert.ok(Math.abs(width - [0.2, 0.72, 0.08][at] * room) < 1e-6));
  assert.equal(phases[1].left - phases[0].right, 3);
  const alone = axis({ phases: [BACKWARD] });
  assert.deepEqual([0, 1, 2, 3, 4].map((time) => alone.x(time)), [100, 350, 600, 850, 1100]);
  assert.deepEqual([0, 1].map((place) => alone.end(place)), [350, 600]);
  assert.equal(alone.forward, undefined, "what was not recorded has no region");
});

test("what follows the last task of a whole step takes the time of one more, on either axis", () => {
  for (const kind of ["task", "clock"] as const) {
    const step = axis({ kind, phases: [FORWARD, BACKWARD, OPTIMIZER] });
    const { left, right } = step.after!;
    assert.equal(step.x(4), step.backward.right);
    assert.equal(step.end(4), step.backward.right, "the end is no task");
    assert.equal(step.x(5), right);
    assert.ok(Math.abs(step.timeAt((left + right) / 2) - 4.5) < 1e-6);
    assert.equal(step.placeAt(right - 1), 4);
    let last = step.x(4.001);
    for (let time = 4.1; time <= 5; time += 0.1) {
      assert.ok(step.x(time) >= last);
      last = step.x(time);
    }
  }
});

test("on the clock axis phases are in proportion, tasks as long as they took, and nothing is drawn in a pause", () => {
  const clock = axis({ kind: "clock" });
  const [forward, backward] = clock.phases;
  const perNs = (backward.right - backward.left) / 100;
  assert.ok(Math.abs((forward.right - forward.left) / (backward.right - backward.left) - 0.5) < 1e-9);
  assert.ok(Math.abs(clock.x(1) - backward.left - 10 * perNs) < 1e-6);
  assert.ok(Math.abs(clock.x(1.5) - backward.left - 25 * perNs) < 1e-6);
  assert.ok(Math.abs(clock.end(2) - backward.left - 50 * perNs) < 1e-6);
  assert.ok(Math.abs(clock.x(3) - backward.left - 80 * perNs) < 1e-6);
  assert.ok(Math.abs(clock.x(4) - backward.right) < 1e-9);
  assert.equal(clock.ns(1.5), 25);
  const short = axis({ kind: "clock", phases: [FORWARD, BACKWARD, { name: "optimizer", elapsed_ns: 1 }] });
  const optimizer = short.phases[2];
  assert.ok(Math.abs((optimizer.right - optimizer.left) / 994 - 0.035) < 1e-6, "too short to be seen");
});

test("beside a long forward the backward is still seen, and what follows it is right of it", () => {
  const long: Phase = { name: "forward", elapsed_ns: 1e9 };
  for (const phases of [[long, BACKWARD, OPTIMIZER], [long, BACKWARD]]) {
    const widths = axis({ kind: "clock", phases }).phases.map(({ left, right }) => right - left);
    assert.ok(widths.every((width) => width > 19), String(widths));
  }
});

test("without times the clock axis is the task axis", () => {
  assert.equal(axis({ kind: "clock", times: null }).kind, "task");
  assert.equal(axis({ kind: "clock", times: null }).x(2), axis().x(2));
});

test("the forward's events are equally far from each other, or as far as the clock says", () => {
  const [task, clock] = [axis(), axis({ kind: "clock" })];
  const at = (event: number) => (event + 1) / 4 - 1;
  const { left, right } = task.forward!;
  assert.ok(Math.abs(task.x(at(1)) - (left + right) / 2) < 1e-9);
  const width = clock.forward!.right - clock.forward!.left;
  [0, 0.8, 1].forEach((share, event) => assert.ok(Math.abs(clock.x(at(event)) - clock.forward!.left - share * width) < 1e-9));
});

test("a pixel finds its task on both axes, zoomed or not; left of the backward it is the first", () => {
  for (const zoom of [WHOLE, { from: 0.3, to: 0.8 }]) {
    for (const kind of ["task", "clock"] as const) {
      const found = axis({ kind, zoom });
      for (const place of [0, 1, 2, 3]) {
        assert.equal(found.placeAt((found.x(place) + found.end(place)) / 2), place, `${kind} ${place}`);
      }
      assert.equal(found.placeAt(found.backward.right + 1), 4);
      assert.equal(found.placeAt(found.forward!.left + 5), 0);
      assert.ok(found.timeAt(found.forward!.left + 5) < 0);
    }
  }
  const clock = axis({ kind: "clock" });
  const pause = clock.backward.left + 0.65 * (clock.backward.right - clock.backward.left);
  assert.equal(clock.placeAt(pause), 2, "in a pause it is the last that ran");
});

test("zoom keeps what is under the pointer where it is, and stays within the whole", () => {
  const before = axis();
  const pixel = before.x(2.25);
  const zoom = zoomed(WHOLE, 3, (pixel - before.left) / 1000, 100);
  assert.ok(Math.abs(axis({ zoom }).x(2.25) - pixel) < 3, "but for the gap between phases, which is not enlarged");
  assert.ok(Math.abs(zoom.to - zoom.from - 1 / 3) < 1e-12);
  assert.deepEqual(zoomed(zoom, 0.01, 0.5, 100), WHOLE);
  assert.ok(Math.abs(zoomed(WHOLE, 1e9, 0.5, 20).to - zoomed(WHOLE, 1e9, 0.5, 20).from - 1 / 20) < 1e-12);
  assert.deepEqual(shifted({ from: 0.5, to: 0.75 }, 9), { from: 0.75, to: 1 });
  assert.deepEqual(shifted({ from: 0.5, to: 0.75 }, -9), { from: 0, to: 0.25 });
  assert.ok(mostZoom(20_000, 1000) > 1000 && mostZoom(3, 1000) === 1);
  const zoomedTo = axis({ zoom: zoomOf(before, before.forward!) });
  assert.ok(Math.abs(zoomedTo.forward!.left - 100) < 1 && Math.abs(zoomedTo.forward!.right - 1100) < 20);
});

test("the longer a tick's text, the fewer there are", () => {
  const ticks = axis({ left: 160, right: 907, places: 22_510, times: null }).ticks();
  assert.deepEqual(ticks.map(({ text }) => text), ["5,000th", "10,000th", "15,000th", "20,000th"]);
});

test("ticks are round, have room, and say which task or when", () => {
  const many = axis({ places: 244, phases: [BACKWARD], times: null, forward: [] });
  assert.deepEqual(many.ticks().slice(0, 3).map(({ text }) => text), ["20th", "40th", "60th"]);
  const clock = axis({ kind: "clock", phases: [BACKWARD] }).ticks();
  assert.deepEqual(clock.slice(0, 3).map(({ text }) => text), ["0", "10 ns", "20 ns"]);
  for (const ticks of [many.ticks(), clock, axis({ places: 100_000, times: null, zoom: { from: 0.5, to: 0.6 } }).ticks()]) {
    assert.ok(ticks.length > 2);
    ticks.slice(1).forEach(({ x }, at) => assert.ok(x - ticks[at].x >= 50, `${x - ticks[at].x}`));
  }
});

test("times are three digits with their unit", () => {
  assert.deepEqual(
    [0, 840, 999.6, 25_100, 4_100_000, 83_200_000, 999_600_000, 1.25e9, 2.5e12].map(nanoseconds),
    ["0 ns", "840 ns", "1.00 µs", "25.1 µs", "4.10 ms", "83.2 ms", "1.00 s", "1.25 s", "2,500 s"],
  );
});

test("tasks without a time are taken to last as long as others, and another order has theirs one by one", () => {
  const document = smallDocument();
  document.records = { 2: { inputs: [], outputs: [], elapsed_ns: 10 }, 1: { inputs: [], outputs: [], elapsed_ns: 30 } };
  const replay = new Replay(new DeckGraph(document), document.schedules[0]);
  const found = timesOf(document, replay)!;
  assert.deepEqual([...found.start], [0, 10, 40, 60]);
  assert.equal(found.total, 80);
  document.schedules[0].clock = { start: [5, 20, 60, 90], duration: [10, 30, 5, 7] };
  assert.deepEqual([...timesOf(document, replay)!.start], [5, 20, 60, 90]);
  const other = new Replay(replay.graph, { ...document.schedules[0], order: [2, 1, 0, 3], clock: null });
  assert.deepEqual([...timesOf(document, other)!.end], [10, 40, 47, 52]);
  assert.equal(timesOf(smallDocument(), replay.schedule.clock ? new Replay(replay.graph, smallDocument().schedules[0]) : replay), null);
});

test("where devices work side by side a pixel is of the task that began last there, whatever its place", () => {
  const start = Float64Array.of(0, 10, 45, 20, 30, 60);
  const beside = { ...times, start, end: Float64Array.of(10, 20, 70, 30, 60, 100) };
  const clock = axis({ kind: "clock", phases: [BACKWARD], forward: [], places: 6, times: beside });
  const at = (ns: number) => clock.backward.left + (ns / 100) * (clock.backward.right - clock.backward.left);
  assert.deepEqual([5, 15, 25, 35, 50, 65, 99].map((ns) => clock.placeAt(at(ns))), [0, 1, 3, 4, 2, 5, 5]);
});

test("on the clock axis another order's tasks are where its own times are, in the same pixels", () => {
  const clock = axis({ kind: "clock" });
  const other = { ...times, start: Float64Array.of(0, 60, 70, 90), end: Float64Array.of(60, 70, 90, 130), total: 130 };
  const at = (ns: number) => clock.backward.left + (ns / times.total) * (clock.backward.right - clock.backward.left);
  [0, 1, 2, 3].forEach((place) => assert.ok(Math.abs(clock.timed(other).x(place) - at(other.start[place])) < 1e-9));
  assert.deepEqual([clock.timed(other).x(-0.5), clock.timed(other).backward], [clock.x(-0.5), clock.backward]);
  assert.equal(clock.timed(null), clock);
  const byTask = axis();
  assert.equal(byTask.timed(other), byTask);
});

test("each device has its tasks, the length of its own queue, and how busy it is", () => {
  const document = smallDocument();
  document.devices = ["cpu", "cuda:0"];
  document.tasks.device = [1, 0, 0, 0];
  document.schedules[0].clock = { start: [0, 10, 20, 90], duration: [10, 10, 10, 10] };
  const replay = new Replay(new DeckGraph(document), document.schedules[0]);
  const [cpu, cuda] = lanesOf(replay, timesOf(document, replay));
  assert.deepEqual([[...cpu.places], [...cuda.places]], [[0, 1, 2], [3]]);
  assert.deepEqual([[...cpu.queue], [...cuda.queue]], [[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 0]]);
  assert.deepEqual([cpu.longest, cuda.longest], [1, 1]);
  assert.deepEqual([cpu.busy, cuda.busy], [0.3, 0.1]);
  assert.deepEqual([cpu.idle, cuda.idle], [[{ from: 30, to: 100 }], [{ from: 0, to: 90 }]]);
  assert.equal(lanesOf(replay, null)[0].busy, null);
  assert.deepEqual([cpu.levels, cpu.peak], [[], 0], "of one device's memory the lanes say nothing");
  document.schedules[0].lane_levels = [{ device: 0, levels: [4, 8, 2, 0] }, { device: 1, levels: [1, 1, 3, 16] }];
  const lanes = lanesOf(replay, null);
  assert.deepEqual(lanes.map(({ levels, peak }) => [levels, peak]), [[[4, 8, 2, 0], 8], [[1, 1, 3, 16], 16]]);
});

test("equal storages have up to four bars, more of them one from the first birth to the last death", () => {
  const memory = {
    device: "cpu", basis: "measured" as const, estimates: [], before: 0, nbytes: [8, 8, 8, 8, 8], forward_ns: [0, 1],
    events: [0, 1, 2, 3, 4, ~1, ~0], starts: [2, 4, 6, 7], born_as: [0, 0, 1, 1, 1], changes: [], peak: "", rows: [],
  };
  const levels = new MemoryLevels(memory);
  const row: LifetimeRow = {
    name: "softmax", module: "blocks.*", count: 2, nbytes: 8, storages: [0, 1], made_by: "", kept_by: "", freed_by: "",
  };
  const two = barsOf(levels, row).bars;
  assert.equal(two.length, 2);
  assert.deepEqual(two.map(({ segments: [{ from }] }) => from < 0), [true, true], "they were born in the forward");
  assert.deepEqual(two.map(({ stays }) => stays), [false, false]);
  const [one, ...none] = barsOf(levels, { ...row, count: 5, storages: [0, 2] }).bars;
  assert.equal(none.length, 0);
  assert.deepEqual([one.segments[0].from < 0, one.segments[0].to, one.stays], [true, 3, true]);
});

test("a bar begins where the storage is known from, and ends where it was freed though that is out of sight", () => {
  const memory = {
    device: "cpu", basis: "measured" as const, estimates: [], before: 1, nbytes: [8], forward_ns: [],
    events: [~0], starts: [0, 0, 0, 0, 0], born_as: [0], changes: [], peak: "", rows: [],
  };
  const row = { name: "x", module: "", count: 1, nbytes: 8, storages: [0], made_by: "", kept_by: "", freed_by: "" };
  const drawn = (of: Axis, step: boolean) => {
    const found = { arrow: NaN, ends: [] as number[] };
    const context = {
      fillStyle: "", beginPath() {}, lineTo() {}, fill() {},
      moveTo: (x: number) => (found.arrow = x),
      fillRect: (x: number, _: number, width: number) => width === 1 && found.ends.push(x + 0.5),
    };
    const lifetimes = [barsOf(new MemoryLevels({ ...memory, step }), row)];
    const picture = { axis: of, bands: bandsOf(900, 1, 1, true), colours: {}, lifetimes } as unknown as Picture;
    drawLifetimes(context as unknown as CanvasRenderingContext2D, picture, true);
    return found;
  };
  const step = axis({ phases: [FORWARD, BACKWARD, OPTIMIZER] });
  assert.deepEqual(drawn(step, true), { arrow: step.left, ends: [step.x(4.5)] }, "it was there as the step began");
  const near = axis({ zoom: { from: 0.3, to: 0.6 } });
  assert.ok(near.backward.right > near.right);
  assert.deepEqual(drawn(near, false), { arrow: near.backward.left, ends: [near.backward.right] });
});

test("memory over the forward begins at its first byte, and what it leaves is where the backward starts", () => {
  const memory = {
    device: "cpu", basis: "measured" as const, estimates: [], before: 0, nbytes: [8, 4], forward_ns: [0, 5, 9],
    events: [0, 1, ~1, ~0], starts: [3, 4], born_as: [0, 3], changes: [], peak: "", rows: [],
  };
  const levels = new MemoryLevels(memory);
  assert.deepEqual([...levels.times], [-0.75, -0.5, -0.25, 0.5]);
  const { times: at, levels: bytes } = levels.forwardSteps((time) => Math.floor(1000 * time));
  assert.deepEqual([[...at], [...bytes[0]], [...bytes[3]]], [[-1, -0.75, -0.5, -0.25], [0, 8, 8, 8], [0, 0, 4, 0]]);
  assert.deepEqual([-1, -0.75, -0.6, -0.5, -0.01].map((time) => levels.forwardEvent(time)), [0, 1, 1, 2, 3]);
  assert.equal(levels.steps(() => 0).levels[0][0], 8);
});

test("as height goes, lifetimes go to three rows, then memory to 72 pixels, then lifetimes, then queues", () => {
  const chart = ({ chart: { top, bottom } }: ReturnType<typeof bandsOf>) => bottom - top;
  const wide = bandsOf(296, 1, 20, null);
  assert.equal(wide.lifetimes.rows, 6);
  assert.equal(bandsOf(900, 1, 20, null).lifetimes.rows, 20);
  assert.deepEqual([bandsOf(240, 1, 20, null), bandsOf(240, 1, 20, null, 96)].map((bands) => bands.lifetimes.rows), [4, 3], "the legend has its rows");
  assert.equal(bandsOf(296, 1, 2, null).lifetimes.rows, 2, "there are no more");
  let before = { rows: Infinity, queues: true };
  for (let height = 900; height >= 120; height -= 2) {
    const bands = bandsOf(height, 2, 20, null);
    assert.ok(bands.lifetimes.rows <= before.rows && (before.queues || !bands.hasQueues), `${height}`);
    if (bands.lifetimes.rows) assert.ok(bands.lifetimes.rows >= 3 && chart(bands) >= 66 && bands.hasQueues);
    before = { rows: bands.lifetimes.rows, queues: bands.hasQueues };
  }
  assert.deepEqual(before, { rows: 0, queues: false });
  assert.equal(bandsOf(296, 1, 20, false).lifetimes.rows, 0);
  assert.ok(bandsOf(200, 1, 20, true).lifetimes.rows >= 3, "the reader wants them");
});
