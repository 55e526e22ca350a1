/** The ready queues of several devices: their content, and what a device waits for. */

import assert from "node:assert/strict";
import test from "node:test";
import { timesOf } from "../src/model/task_times.ts";
import { DeckGraph } from "../src/model/graph.ts";
import { deviceBusy, deviceQueue, devicesWithQueues, heldUp, shownRows } from "../src/model/queues.ts";
import { Replay } from "../src/model/replay.ts";
import { smallDocument } from "./small_document.ts";

/**
 * On the CPU Sum (0) leads to Mm (1), and from there to a chain of Relus (2, 3, 4) and to ToCopy (5). On cuda:0 there
 * are Mm (6) and a leaf (7), to which ToCopy leads. As under heap, ToCopy is the last of the CPU's tasks.
 */
function twoDevices(policy = "heap", order = [0, 1, 2, 3, 4, 5, 6, 7]): Replay {
  const document = smallDocument();
  const texts = ["Sum", "Mm", "Relu", "ToCopy", "cpp", "accumulate_grad", "", "", "AccumulateGrad", "far.weight"];
  const none = order.map(() => -1);
  const tasks = {
    name: [0, 1, 2, 2, 2, 3, 1, 8], kind: [4, 4, 4, 4, 4, 4, 4, 5], call: none, line: none, operation: none,
    parameter: [-1, -1, -1, -1, -1, -1, -1, 9], device: [0, 0, 0, 0, 0, 0, 1, 1], takes: order.map(() => 0),
  };
  const edges = { task: [0, 0, 1, 2, 3, 5, 6], output: [0, 1, 0, 0, 0, 0, 0], next: [1, 5, 2, 3, 4, 6, 7], input: none.slice(1).map(() => 0) };
  const devices = ["cpu", "cuda:0"];
  const schedules = [{ ...document.schedules[0], policy, order }];
  return new Replay(
    new DeckGraph({ ...document, devices, queues: "per device", texts, tasks, edges, roots: [[0, 0]], schedules }),
    schedules[0],
  );
}

const queues = (replay: Replay, t: number) => devicesWithQueues(replay).map((device) => deviceQueue(replay, device, t, 60));

test("each device has its own queue, the CPU's first, in the order in which its tasks run", () => {
  const [cpu, cuda] = queues(twoDevices(), 1);
  assert.deepEqual([cpu.name, cpu.running, cpu.ready, cpu.count, cpu.ran, cpu.all], ["cpu", 1, [5], 1, 1, 6]);
  assert.deepEqual([cuda.name, cuda.running, cuda.ready, cuda.next, cuda.ran, cuda.all], ["cuda:0", -1, [], 6, 0, 2]);
});

test("a graph whose devices share one queue has none of its own", () => {
  const replay = twoDevices();
  replay.graph.document.queues = "one";
  assert.deepEqual(devicesWithQueues(replay), []);
});

test("what stands still waits for the ready task that leads to it, which says so in its queue", () => {
  const replay = twoDevices();
  const [cpu, cuda] = queues(replay, 1);
  assert.deepEqual(cuda.waitsFor, [5]);
  assert.equal(heldUp(replay, 1, cpu, [cuda]), "ToCopy, which alone lets cuda:0 start, waits behind tasks created later");
  assert.equal(heldUp(replay, 1, cuda, [cpu]), "");
});

test("what leads on and runs now or next is said to", () => {
  const replay = twoDevices();
  const [next, after] = queues(replay, 4);
  assert.equal(heldUp(replay, 4, next, [after]), "ToCopy, which alone lets cuda:0 start, runs next");
  const [now, then] = queues(replay, 5);
  assert.equal(heldUp(replay, 5, now, [then]), "cuda:0 waits for it");
});

test("a device that has begun goes on, and one that has ended waits for nothing", () => {
  const replay = twoDevices("bfs", [0, 5, 6, 1, 7, 2, 3, 4]);
  const [cpu, cuda] = queues(replay, 3);
  assert.deepEqual([cpu.running, cuda.ready, cuda.count], [1, [7], 1]);
  const [, done] = queues(replay, 6);
  assert.deepEqual([done.next, done.waitsFor, done.ran], [-1, [], 2]);
});

test("of many rows two are shown, and those that another device waits for, with their places", () => {
  const [cpu, cuda] = queues(twoDevices(), 1);
  const long = { ...cpu, ready: [2, 3, 4, 5] };
  assert.deepEqual(shownRows(long, [cuda], 2), [[2, 0], [3, 1], [5, 3]]);
});

test("where no clock tells, devices work side by side: each as soon as it is free, and what it waits for has ended", () => {
  const replay = twoDevices("bfs", [0, 5, 6, 1, 7, 2, 3, 4]);
  const { document } = replay.graph;
  for (let task = 0; task < 8; task++) document.records[task] = { inputs: [], outputs: [], elapsed_ns: 10 };
  const times = timesOf(document, replay)!;
  assert.deepEqual([...times.start], [0, 10, 20, 20, 30, 30, 40, 50]);
  assert.deepEqual([times.total, times.isWhole], [60, true]);
  const cuda = document.devices.indexOf("cuda:0");
  document.records[6].elapsed_ns = 25;
  assert.deepEqual(deviceBusy(replay, cuda, 3, timesOf(document, replay)!), { task: 6, left: 25 });
  assert.deepEqual(deviceBusy(replay, cuda, 6, timesOf(document, replay)!), { task: 7, left: 15 });
  assert.equal(deviceBusy(replay, cuda, 2, timesOf(document, replay)!), null);
  document.records[6].elapsed_ns = 10;
  document.queues = "one";
  assert.deepEqual([...timesOf(document, replay)!.start], [0, 10, 20, 30, 40, 50, 60, 70]);
  delete document.records[4];
  assert.equal(timesOf(document, replay)!.isWhole, false);
});

test("at the end no device has any task left", () => {
  const replay = twoDevices();
  for (const { ready, next, running } of queues(replay, replay.length)) assert.deepEqual([ready, next, running], [[], -1, -1]);
});
