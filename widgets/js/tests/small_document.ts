/** A deck's document of a few tasks, for tests of the graph. */

import { type DeckDocument, FORMAT, NONE, VERSION } from "../src/model/document.ts";

/**
 * A chain Sum <- Mm <- Relu in one module, with a parameter at Mm: tasks 0 (Relu), 1 (Mm), 2 (Sum), 3 (AccumulateGrad).
 * Gradients flow from 2 to 1, and from there to 0 and 3. The tasks run in the order 2, 1, 3, 0.
 */
export function smallDocument(module = "encoder", parameter = `${module}.weight`): DeckDocument {
  const texts = [
    "ReluBackward0", "MmBackward0", "SumBackward0", "torch::autograd::AccumulateGrad", "cpp", "accumulate_grad",
    "cpu", module, "Linear", parameter,
  ];
  return {
    format: FORMAT,
    version: VERSION,
    revision: 0,
    title: "Tiny",
    engine: "direct",
    devices: ["cpu"],
    phases: [{ name: "backward", elapsed_ns: null }],
    keeps_graph: false,
    texts,
    metas: [{ shape: [4, 4], dtype: "float32", device: "cpu", bytes: 64 }],
    forms: [[0]],
    tasks: {
      name: [0, 1, 2, 3],
      kind: [4, 4, 4, 5],
      call: [0, 0, NONE, NONE],
      line: [NONE, NONE, NONE, NONE],
      operation: [NONE, NONE, NONE, NONE],
      parameter: [NONE, NONE, NONE, 9],
      device: [0, 0, 0, 0],
      takes: [0, 0, 0, 0],
    },
    edges: { task: [1, 1, 2], output: [0, 1, 0], next: [0, 3, 1], input: [0, 0, 0] },
    roots: [[2, 0]],
    calls: { path: [7], class: [8], parent: [NONE], index: [0] },
    lines: [],
    saved: { task: [], slot: [], storage: [], bytes: [], meta: [], parameter: [], held: [] },
    schedules: [
      {
        policy: "heap", title: "latest created first", order: [2, 1, 3, 0], keys: "created", by_hand: [],
        memory: null, memory_note: "",
      },
    ],
    position: 4,
    records: {},
  };
}
