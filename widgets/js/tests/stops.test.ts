/** Breakpoints and watchpoints, module calls, and the names that a breakpoint accepts. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { DeckDocument } from "../src/model/document.ts";
import { DeckGraph } from "../src/model/graph.ts";
import { suggestPlaces } from "../src/model/breakpoint_places.ts";
import { Replay } from "../src/model/replay.ts";
import { endOfCall, marksOf, ownStops, type StopPoint, stopsBefore, taskOf } from "../src/model/stops.ts";
import { smallDocument } from "./small_document.ts";

function stop(number: number, more: Partial<StopPoint> = {}): StopPoint {
  return { number, kind: "break", text: "Mm", enabled: true, hits: 0, tasks: [], calls: [], ...more };
}

/** Relu in net.body and Mm in net, in this order; the parameter belongs to no call. */
function nested(): DeckDocument {
  const document = smallDocument();
  document.texts.push("net", "net.body");
  const [net, body] = [document.texts.length - 2, document.texts.length - 1];
  // The inner call comes first: the numbers of calls do not reflect their nesting.
  document.calls = { path: [body, net], class: [8, 8], parent: [1, -1], index: [0, 0] };
  document.tasks.call = [0, 1, -1, 1];
  return document;
}

test("a task is marked by any breakpoint that may stop before it, hollow where all of those are disabled", () => {
  const stops = [
    stop(1, { tasks: [1, 2], enabled: false }),
    stop(2, { tasks: [2] }),
    stop(3, { kind: "watch", tasks: [0] }),
  ];
  const graph = new DeckGraph(smallDocument());
  const replay = new Replay(graph, graph.document.schedules[0]);
  assert.deepEqual([...marksOf(stops, new Set([3]), replay)], [[1, false], [2, true], [3, true]]);
});

test("a breakpoint on modules is before the first task of each call, in the order that is shown", () => {
  const graph = new DeckGraph(smallDocument());
  const [schedule] = graph.document.schedules;
  const modules = stop(1, { tasks: [0, 1, 2, 3], calls: [7, 7, 8, 8] });
  const first = (order: number[]) => stopsBefore(modules, new Replay(graph, { ...schedule, order })).sort();
  assert.deepEqual(first([2, 1, 3, 0]), [1, 2]);
  assert.deepEqual(first([0, 3, 1, 2]), [0, 3]);
});

test("a page without a kernel numbers its breakpoints in the order in which they were set", () => {
  let stops = ownStops([], new Set([3, 1]));
  stops = ownStops(stops, new Set([1]));
  stops = ownStops(stops, new Set([1, 2]));
  assert.deepEqual(stops.map(({ number, tasks }) => [number, ...tasks]), [[2, 1], [3, 2]]);
});

test("only what was set at a task by its number is named for it", () => {
  assert.equal(taskOf(stop(1, { text: "#3", tasks: [3] })), 3);
  assert.equal(taskOf(stop(1, { text: "3", tasks: [3] })), 3);
  assert.equal(taskOf(stop(1, { text: "encoder.weight", tasks: [3] })), -1);
});

test("a module is stepped over when all tasks of its call and of the calls in it have run, the outermost by one task", () => {
  const graph = new DeckGraph(nested());
  const replay = new Replay(graph, graph.document.schedules[0]); // 2 Sum, 1 Mm in net, 3 weight in net, 0 Relu in body
  assert.equal(endOfCall(replay, 0, false), 1, "no call was seen of it: one task");
  assert.equal(endOfCall(replay, 0, true), 4, "and out of none to the end");
  assert.equal(endOfCall(replay, 1, false), 2, "net is the whole model");
  assert.equal(endOfCall(replay, 3, false), 4);
  const { schedules } = graph.document;
  const other = new Replay(graph, { ...schedules[0], order: [0, 1, 2, 3] });
  assert.deepEqual([endOfCall(other, 0, false), endOfCall(other, 0, true)], [1, 4]);
});

test("places are offered by their beginning first, with how many tasks they mean", () => {
  const graph = new DeckGraph(nested());
  const found = (words: string, task = -1) =>
    suggestPlaces(graph, words, task, 9).map(({ where, what, tasks }) => `${where} ${what} ${tasks}`);
  assert.deepEqual(found("net"), ["net module 3", "net.body module 1"]);
  assert.deepEqual(found("BODY"), ["net.body module 1"]);
  assert.deepEqual(found("weight"), ["encoder.weight parameter 1"]);
  assert.deepEqual(found("", 1).slice(0, 2), ["Mm kind 1", "net module 3"], "without words what the task is, first");
  assert.deepEqual(found("nothing"), []);
});

test("a name that is something else first is offered with a prefix", () => {
  const graph = new DeckGraph(smallDocument("Mm", "Mm"));
  const found = suggestPlaces(graph, "mm", -1, 9).map(({ where, what }) => [where, what]);
  assert.deepEqual(found, [["Mm", "kind"], ["grad:Mm", "parameter"], ["module:Mm", "module"]].sort((one, other) =>
    one[0].length - other[0].length));
});
