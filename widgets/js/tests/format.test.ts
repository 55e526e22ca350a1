/** Texts and suggestions of the queue, the inspector and the search. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { barsOf, barsPerSide, binRange, decadesOf, power, summary } from "../src/model/histogram.ts";
import { DeckGraph } from "../src/model/graph.ts";
import { Replay } from "../src/model/replay.ts";
import { replays } from "../src/model/recompute.ts";
import { fate, isFreed, keptBytes, savedBy } from "../src/model/saved_tensors.ts";
import { typedTask } from "../src/model/find.ts";
import { suggest } from "../src/model/search_ranking.ts";
import { readyBefore, waitingBytes } from "../src/model/input_buffer_bytes.ts";
import { when } from "../src/model/task_timing_words.ts";
import { Store } from "../src/store.ts";
import { nth } from "../src/format.ts";
import { where } from "../src/views/announcer.ts";
import { dashes } from "../src/views/policy_line_styles.ts";
import type { DeckDocument } from "../src/model/document.ts";

/**
 * Four tasks: 3 -> 2 and 3 -> 1, 2 -> 0 and 1 -> 0. Tasks 1 and 2 save the same 64 bytes, task 3 a parameter, and task
 * 0 a tensor held by the caller.
 */
function diamond(order = [3, 2, 1, 0]): Replay {
  const texts = ["SumBackward0", "cpp", "fc.weight", "blocks.10", "ReluBackward0", "self", "cpu", "", "Linear"];
  const document = {
    title: "diamond",
    texts,
    metas: [{ shape: [4, 4], dtype: "float32", device: "cpu", bytes: 64 }],
    forms: [[0]],
    tasks: {
      name: [4, 4, 4, 0],
      kind: [1, 1, 1, 1],
      call: [0, -1, -1, -1],
      line: [0, -1, -1, -1],
      operation: [-1, -1, -1, -1],
      parameter: [-1, -1, -1, -1],
      device: [6, 6, 6, 6],
      takes: [0, 0, 0, 0],
    },
    edges: { task: [1, 2, 3, 3], output: [0, 0, 0, 1], next: [0, 0, 1, 2], input: [0, 0, 0, 0] },
    roots: [[3, 0]],
    calls: { path: [3], class: [8], parent: [-1], index: [0] },
    lines: [{ file: "/relu/net.py", short: "relu.py:7", line: 7, function: "forward", first: 7, code: ["x"] }],
    saved: {
      task: [0, 1, 2, 3],
      slot: [5, 5, 5, 5],
      storage: [9, 7, 7, 8],
      bytes: [4, 64, 64, 16],
      meta: [0, 0, 0, 0],
      parameter: [-1, -1, -1, 2],
      held: [1, 0, 0, 0],
    },
    schedules: [{ policy: "heap", title: "", order, keys: "created", by_hand: [], memory: null, memory_note: "" }],
  } as unknown as DeckDocument;
  return new Replay(new DeckGraph(document), document.schedules[0]);
}

test("a task says where it stands", () => {
  const replay = diamond();
  assert.equal(when(replay, 0, 1).join(""), "will run 4th of 4, 0 of 2 gradients arrived");
  assert.equal(when(replay, 0, 2).join(""), "will run 4th of 4, 1 of 2 gradients arrived");
  assert.equal(when(replay, 3, 0).join(""), "runs 1st of 4");
  assert.equal(when(replay, 3, 4).join(""), "ran 1st of 4");
  assert.equal(when(replay, 1, 1).join(""), "ready, will run 3rd of 4");
  assert.equal(when(replay, 1, 1, 0, "simulated").join(""), "ready, would run 3rd of 4");
  assert.equal(when(replay, 0, 1, 1, "failed").join(""), "would run 4th of 4, 0 of 2 gradients arrived");
  assert.match(when(diamond([3, 2, 1]), 0, 1).join(""), /not part/);
  assert.equal(when(replay, 3, 2, 1).join(""), "ran 1st of 4");
  assert.equal(when(replay, 2, 2, 1).join(""), "will run 2nd of 4");
  assert.equal(when(replay, 1, 2, 1).join(""), "will run 3rd of 4");
});

test("bytes wait from the moment a task is ready until it runs", () => {
  const replay = diamond();
  assert.deepEqual([...waitingBytes(replay)], [0, 64, 0, 0, 0]);
  assert.equal(waitingBytes(replay), waitingBytes(replay), "computed once");
  assert.equal(readyBefore(replay, 1, 1), 0);
});

test("shared bytes go with the last task that keeps them, under the shown order", () => {
  const replay = diamond();
  const [shared] = savedBy(replay, 2);
  assert.equal(fate(replay, shared, 1), "freed after the 3rd, also saved by Relu, 3rd");
  assert.equal(fate(replay, shared, 3), "freed by the 3rd, was also saved by Relu, 3rd");
  const [other] = savedBy(diamond([3, 1, 2, 0]), 1);
  assert.equal(other.last, 2);
  assert.match(fate(diamond([3, 2]), savedBy(diamond([3, 2]), 2)[0], 2), /kept to the end/);
  assert.equal(keptBytes(savedBy(replay, 2)), 64);
  assert.equal(keptBytes([...savedBy(replay, 3), ...savedBy(replay, 0)]), 0, "they are there anyway");
  assert.equal(fate(replay, savedBy(replay, 3)[0], 0), "parameter fc.weight, not counted");
  assert.equal(fate(replay, savedBy(replay, 0)[0], 0), "held by the caller, not counted");
});

test("with retain_graph nothing is freed", () => {
  const replay = diamond();
  replay.graph.document.keeps_graph = true;
  const [shared] = savedBy(replay, 2);
  assert.equal(fate(replay, shared, 4), "kept: the graph is retained, also saved by Relu, 3rd");
  assert.equal(isFreed(replay, shared, 4), false);
});

test("a dropped tensor is recomputed by the first task that saves it", () => {
  const { document } = diamond().graph;
  document.saved.made_by = [-1, 3, 3, -1];
  const replay = new Replay(new DeckGraph(document), document.schedules[0]);
  const [first, second] = replay.place[1] < replay.place[2] ? [1, 2] : [2, 1];
  assert.deepEqual([0, first, second, 3].map((task) => replays(replay, task)), ["", "recomputes 1 first", "", ""]);
  const [saved] = savedBy(replay, second);
  const by = replay.graph.text(3);
  const made = new RegExp(`^dropped, recomputed by ${by} as the ${nth(replay.place[first] + 1)} runs, also saved by Relu, `);
  assert.match(fate(replay, saved, replay.place[first]), made);
  assert.match(fate(replay, saved, replay.place[first] + 1), /^freed after the/, "it is there again");
  assert.equal(keptBytes([saved]), 0);
  assert.equal(replays(diamond(), first), "");
});

test("bytes that a task keeps in two slots are counted once", () => {
  const { document } = diamond().graph;
  const { saved } = document;
  for (const column of Object.values(saved)) column.push(column[1]);
  saved.task[4] = 3;
  saved.slot[4] = 2;
  saved.task.push(3);
  for (const [name, column] of Object.entries(saved)) if (name !== "task") column.push(column[1]);
  const replay = new Replay(new DeckGraph(document), document.schedules[0]);
  const all = savedBy(replay, 3);
  assert.deepEqual(
    all.map((each) => each.sameAs),
    ["", "", "fc.weight"],
  );
  assert.equal(keptBytes(all), 64);
  assert.equal(fate(replay, all[2], 0), "shares its bytes with fc.weight");
});

test("a number finds its task, a beginning comes before a place within", () => {
  const replay = diamond();
  const all = new Uint8Array(4).fill(1);
  for (const typed of ["3", "3rd", "#1"]) assert.deepEqual(suggest(replay, all, typed, 4)[0], 1, "the 3rd, created as #1");
  assert.equal(typedTask(replay, "5th"), -1);
  assert.equal(typedTask(replay, "0"), -1);
  assert.equal(typedTask(replay, "fc"), undefined);
  assert.deepEqual(suggest(replay, all, " RELU ", 4), [2, 1, 0, 3]);
  assert.deepEqual(suggest(replay, all, "10", 2), [0, 3], "the end of a module's path");
  assert.deepEqual(suggest(replay, Uint8Array.of(0, 0, 0, 1), "relu", 4), [3], "matches alone");
});

test("bars stand for the square root of counts, from zero outwards", () => {
  const gradient = { meta: 0, first_bin: 30, bins: [1, 0, 4], zero: 9 };
  const wide = { least: -12, most: 3, isBeyond: false };
  const { bars, zero } = barsOf(gradient, wide);
  assert.deepEqual(bars, [
    { step: 0, isNegative: true, height: 1 / 3 },
    { step: -1, isNegative: false, height: 2 / 3 },
  ]);
  assert.equal(zero, 1);
  assert.deepEqual(barsOf({ meta: 0, first_bin: 63, bins: [4, 5] }, wide).bars.length, 1, "beyond the last bin");
});

test("an axis has the decades that its gradients use, the same for all of them", () => {
  const small = { meta: 0, first_bin: 42, bins: [1, 2] }; // 1e-7.5 to 1e-6.5
  const large = { meta: 0, first_bin: 6, bins: [3] }; // -10^0.5 to -1
  assert.deepEqual(decadesOf([small, null]), { least: -8, most: -6, isBeyond: false });
  assert.deepEqual(decadesOf([small, large, undefined]), { least: -8, most: 1, isBeyond: false });
  assert.deepEqual(decadesOf([{ meta: 0, first_bin: 63, bins: [1] }]), { least: 1, most: 3, isBeyond: true });
  assert.deepEqual(decadesOf([{ meta: 0, first_bin: 32, bins: [1] }]), { least: -12, most: -10, isBeyond: false });
  assert.equal(decadesOf([{ meta: 0, zero: 4 }, null]), null);
  assert.equal(barsPerSide({ least: 1, most: 3, isBeyond: true }), 5);
  assert.deepEqual([-6, -2, 0, 2, 3].map(power), ["1e−6", "0.01", "1", "100", "1e3"]);
});

test("a bin's range is that of engine/recording/statistics.py", () => {
  assert.equal(binRange(32), "0 to 1e−12");
  assert.equal(binRange(31), "−1e−12 to 0");
  assert.equal(binRange(57), "1 to 3.16");
  assert.equal(binRange(6), "−3.16 to −1");
  assert.equal(binRange(63), "above 1000");
  assert.equal(binRange(0), "below −1000");
  const said = summary({ meta: 0, first_bin: 57, bins: [204800] }, { least: -1, most: 1, isBeyond: false });
  assert.match(said, /^204,800 values.*logarithmic on both sides of zero, from ±0.1 to ±10, .*: all 1 to 3.16$/);
  const two = summary({ meta: 0, first_bin: 56, bins: [1, 3], zero: 5 }, { least: -1, most: 1, isBeyond: false });
  assert.match(two, /75 % are 1 to 3.16; the outermost 0.316 to 1 and 1 to 3.16; 5 exact zeros/);
});

test("of a step that ran several tasks the reason says so", () => {
  const replay = diamond();
  replay.schedule.batches = [[2, 1]];
  const again = new Replay(replay.graph, replay.schedule);
  assert.equal(again.reason(1), "1 of 2 ready, as one with 1 other task");
  assert.equal(again.reason(2), "as one with 1 other task, from the 2nd on");
  assert.equal(replay.reason(1), "latest created of 2 ready");
});

test("a policy keeps its line in every deck", () => {
  assert.deepEqual(dashes(["bfs", "heap"]), [[6, 3], []]);
  const [first, , second] = dashes(["lpmf", "dfs", "random"]);
  assert.notDeepEqual(first, second);
});

test("a step is announced with its place, its module and the reason for it", () => {
  const store = new Store(diamond().graph.document, null);
  assert.equal(where(store), "SumBackward0, runs 1st of 4, 0 ready, the only ready task");
  store.go(1);
  assert.equal(where(store), "ReluBackward0, runs 2nd of 4, 1 ready, latest created of 2 ready");
  store.go(3);
  assert.equal(where(store), "ReluBackward0, blocks.10, runs 4th of 4, 0 ready, the only ready task");
  store.go(4);
  assert.equal(where(store), "finished, 4 tasks have run");
});

test("a task's place in its run reads as an ordinal", () => {
  const places = [1, 2, 3, 4, 11, 12, 13, 21, 53, 111, 112, 1003, 1011];
  const said = ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "53rd", "111th", "112th", "1,003rd", "1,011th"];
  assert.deepEqual(places.map(nth), said);
});
