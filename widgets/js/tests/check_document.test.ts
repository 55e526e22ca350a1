/** Damaged documents raise an error with a sentence; they are never shown partially. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { checkDocument, DocumentError } from "../src/model/check_document.ts";
import type { DeckDocument, Memory } from "../src/model/document.ts";
import { smallDocument } from "./small_document.ts";

const memory: Memory = {
  device: "cpu", basis: "measured", estimates: [], before: 0, nbytes: [8], events: [0, ~0], starts: [0, 1, 1, 2, 2],
  born_as: [0], changes: [1, 1, 0, 2], peak: "", forward_ns: [],
  rows: [{ name: "", module: "", count: 1, nbytes: 8, storages: [0], made_by: "", kept_by: "", freed_by: "" }],
};

/** A document with entries in each of its lists. */
function whole(): DeckDocument {
  const document = smallDocument();
  document.lines = [{ file: "model.py", short: "model.py:3", line: 3, function: "forward", first: 3, code: ["x = 1"] }];
  document.tasks.line = [0, 0, -1, -1];
  document.saved = { task: [1], slot: [7], storage: [0], bytes: [8], meta: [0], parameter: [-1], held: [0] };
  document.schedules = [{ ...document.schedules[0], memory: structuredClone(memory) }];
  document.records = { 1: { inputs: [{ meta: 0 }, null], outputs: [], elapsed_ns: 5 } };
  return document;
}

function assertDamaged(document: unknown, what: string): void {
  assert.throws(() => checkDocument(document), (error) => {
    assert.ok(error instanceof DocumentError, `${what}: ${String(error)}`);
    assert.match(error.message, /^This deck's data is damaged: .+\. Save the page again\.$/, what);
    return true;
  });
}

test("a whole document passes", () => {
  const document = whole();
  assert.equal(checkDocument(document), document);
  assert.doesNotThrow(() => checkDocument(smallDocument()));
});

test("each column has as many rows as its table, and each number leads somewhere", () => {
  for (const table of ["tasks", "edges", "calls", "saved"] as const) {
    for (const column of Object.keys(whole()[table])) {
      const damaged = (change: (values: unknown[]) => void) => {
        const document = whole();
        change((document[table] as unknown as Record<string, unknown[]>)[column]);
        return document;
      };
      assertDamaged(damaged((values) => values.pop()), `${table}.${column} without its last row`);
      for (const wrong of [-7, 0.5, NaN, "1", null]) {
        assertDamaged(damaged((values) => (values[0] = wrong)), `${table}.${column} with ${String(wrong)}`);
      }
      const document = whole();
      delete (document[table] as unknown as Record<string, unknown>)[column];
      assertDamaged(document, `no ${table}.${column}`);
    }
  }
});

test("what leads beyond the end of a list is found wherever it is", () => {
  const damages: Record<string, (document: DeckDocument) => void> = {
    text: ({ tasks }) => (tasks.name[2] = 10),
    call: ({ tasks }) => (tasks.call[2] = 1),
    line: ({ tasks }) => (tasks.line[2] = 1),
    form: ({ tasks }) => (tasks.takes[2] = 1),
    "meta of a form": ({ forms }) => (forms[0][0] = 1),
    "task of an edge": ({ edges }) => (edges.next[1] = 4),
    "input of an edge": ({ edges }) => (edges.input[1] = 1),
    "task of a root": ({ roots }) => (roots[0][0] = 4),
    "input of a root": ({ roots }) => (roots[0][1] = 1),
    "a root that is none": (document) => (document.roots = [5] as unknown as [number, number][]),
    "no roots": (document) => delete (document as Partial<DeckDocument>).roots,
    "task that saved": ({ saved }) => (saved.task[0] = 4),
    "task of an order": ({ schedules }) => (schedules[0].order[1] = 4),
    "task that runs twice": ({ schedules }) => (schedules[0].order[1] = 2),
    "task chosen by hand": ({ schedules }) => (schedules[0].by_hand = [4]),
    "task of a step": ({ schedules }) => (schedules[0].batches = [[0, 4]]),
    "a key too few": ({ schedules }) => (schedules[0].keys = ["a"]),
    position: (document) => (document.position = 5),
    storage: ({ schedules }) => (schedules[0].memory!.events[1] = ~1),
    "category of a birth": ({ schedules }) => (schedules[0].memory!.born_as[0] = 11),
    "category of a change": ({ schedules }) => (schedules[0].memory!.changes[3] = 11),
    "storage of a change": ({ schedules }) => (schedules[0].memory!.changes[2] = 1),
    "bytes that no number holds": ({ schedules }) => (schedules[0].memory!.nbytes[0] = 1e308),
    "storages before that are none": ({ schedules }) => (schedules[0].memory!.before = 2),
    "event of a change": ({ schedules }) => (schedules[0].memory!.changes[0] = NaN),
    "a call inside of itself": ({ calls }) => (calls.parent[0] = 0),
    "half a change": ({ schedules }) => schedules[0].memory!.changes.pop(),
    "start of a place": ({ schedules }) => (schedules[0].memory!.starts[4] = 3),
    "places without order": ({ schedules }) => (schedules[0].memory!.starts[1] = 2),
    "task of a record": (document) => (document.records = { 4: { inputs: [], outputs: [], elapsed_ns: null } }),
    "meta of a record": ({ records }) => (records[1].inputs[0]!.meta = 1),
    "a text that is none": ({ texts }) => ((texts as unknown[])[0] = null),
  };
  for (const [what, damage] of Object.entries(damages)) {
    const document = whole();
    damage(document);
    assertDamaged(document, what);
  }
});
