/** Creation times: known tasks in their order, the nearest one to a time, and their words. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { checkDocument, DocumentError } from "../src/model/check_document.ts";
import { createdAt, createdWords, creationOf, creationRange, nearestTo } from "../src/model/creation.ts";
import { NONE } from "../src/model/document.ts";
import { DeckGraph } from "../src/model/graph.ts";
import { Store } from "../src/store.ts";
import { smallDocument } from "./small_document.ts";

function timed(created: number[]) {
  const document = smallDocument();
  document.tasks.created = created;
  return document;
}

test("tasks are sorted by their time from the first node on, and unknown times are left out", () => {
  const graph = new DeckGraph(timed([32_200_000, 29_000_800, 29_000_800, NONE]));
  const creation = creationOf(graph)!;
  assert.deepEqual([...creation.tasks], [1, 2, 0]);
  assert.deepEqual([...creation.index], [2, 0, 1, -1]);
  assert.equal(creation.end, 3_199_200); // without the 29 ms in which the first operation started up
  assert.deepEqual([0, 1, 3].map((task) => createdAt(graph, task)), [1, 0, -1]);
  assert.equal(createdWords(graph, 0), "created 3.20 ms after the first node, #0");
  assert.equal(createdWords(graph, 3), "created #3");
  assert.equal(creationRange(graph, 0.5, 1), "created 1.60 ms to 3.20 ms after the first node");
  assert.equal(creationRange(graph, 1, 1), "created 3.20 ms after the first node");
});

test("the nearest task to a time is that of a look at all", () => {
  const times = [0, 5, 5, 11, 40];
  const document = timed([5, 40, 0, 11]);
  const creation = creationOf(new DeckGraph(document))!;
  for (let time = -3; time < 50; time++) {
    const found = creation.times[nearestTo(creation, time)];
    assert.equal(Math.abs(found - time), Math.min(...times.map((each) => Math.abs(each - time))), `at ${time}`);
  }
});

test("a document without times has none, and its tasks cannot be coloured by them", () => {
  const plain = new Store(smallDocument(), null);
  assert.equal(creationOf(plain.graph), null);
  assert.equal(createdWords(plain.graph, 2), "created #2");
  plain.colourByCreation();
  assert.equal(plain.state.byCreation, false);
  const store = new Store(timed([1, 2, 3, NONE]), null);
  for (const expected of [true, false]) {
    store.colourByCreation();
    assert.equal(store.state.byCreation, expected);
  }
});

test("a damaged column of times is refused", () => {
  assert.equal(checkDocument(timed([1, 2, 3, NONE])).tasks.created?.length, 4);
  for (const wrong of [[1], [1, 2, 3, -2], [1, 2, 3, 0.5]]) assert.throws(() => checkDocument(timed(wrong)), DocumentError);
});

test("of a simulation nothing has run, whichever tab is shown", () => {
  const document = { ...smallDocument(), is_simulated: true, position: 0 };
  const store = new Store(document, null);
  store.go(2);
  assert.deepEqual([store.isSimulated, store.unreal, store.ran], [true, "simulated", 0]);
});
