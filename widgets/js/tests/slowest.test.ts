/** The slowest operations and modules of a measured backward. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { DeckGraph } from "../src/model/graph.ts";
import { slowestOf } from "../src/model/slowest.ts";
import { smallDocument } from "./small_document.ts";

function measured(times: Record<number, number>) {
  const records = Object.entries(times).map(([task, elapsed_ns]) => [task, { inputs: [], outputs: [], elapsed_ns }]);
  return { ...smallDocument(), records: Object.fromEntries(records) };
}

test("operations and modules are summed, slowest first, each with its slowest task", () => {
  const document = measured({ 0: 30, 1: 50, 2: 60, 3: 10 });
  const found = slowestOf(document, new DeckGraph(document))!;
  assert.equal(found.total, 150);
  assert.deepEqual(found.operations.map(({ name }) => name), ["SumBackward0", "MmBackward0", "ReluBackward0", "AccumulateGrad"]);
  assert.deepEqual(found.modules, [{ name: "encoder", elapsed: 80, tasks: 2, slowest: 1 }]);
});

test("nothing is known of a backward that is simulated, or whose times are known in part", () => {
  const part = measured({ 0: 30, 1: 50, 2: 60 });
  assert.equal(slowestOf(part, new DeckGraph(part)), null);
  const simulated = { ...measured({ 0: 30, 1: 50, 2: 60, 3: 10 }), is_simulated: true };
  assert.equal(slowestOf(simulated, new DeckGraph(simulated)), null);
});
