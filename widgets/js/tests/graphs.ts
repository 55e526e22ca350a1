/** Documents for tests of the layout, made by hand or at random. */

import { type DeckDocument, FORMAT, NONE, VERSION } from "../src/model/document.ts";
import { DeckGraph } from "../src/model/graph.ts";

export interface Call {
  path: string;
  className: string;
  parent: number;
}

export interface Sketch {
  /** Name of each task; "AccumulateGrad" makes it a leaf's. */
  names: string[];
  /** Edges [task, next task]; the outputs of a task are numbered in this order. */
  edges: [number, number][];
  calls?: Call[];
  /** Call of each task. */
  callOf?: number[];
  /** Parameter of each task, "" for none. */
  parameters?: string[];
}

export function graphOf(sketch: Sketch): DeckGraph {
  return new DeckGraph(documentOf(sketch));
}

export function documentOf({ names, edges, calls = [], callOf = [], parameters = [] }: Sketch): DeckDocument {
  const numbers = new Map<string, number>();
  const text = (of: string) => {
    if (!numbers.has(of)) numbers.set(of, numbers.size);
    return numbers.get(of) as number;
  };
  const outputs = new Int32Array(names.length);
  const sorted = edges.toSorted(([a], [b]) => a - b);
  const times = new Map<string, number>();
  const index = calls.map(({ path }) => {
    times.set(path, (times.get(path) ?? -1) + 1);
    return times.get(path) as number;
  });
  const entered = new Set(edges.map(([, next]) => next));
  const order = names.map((_, task) => task).reverse();
  const document: DeckDocument = {
    format: FORMAT,
    version: VERSION,
    title: "Sketch",
    engine: "direct",
    devices: ["cpu"],
    phases: [],
    keeps_graph: false,
    texts: [],
    metas: [{ shape: [4, 4], dtype: "float32", device: "cpu", bytes: 64 }],
    forms: [[0]],
    tasks: {
      name: names.map(text),
      kind: names.map((name) => text(name === "AccumulateGrad" ? "accumulate_grad" : "cpp")),
      call: names.map((_, task) => callOf[task] ?? NONE),
      line: names.map(() => NONE),
      operation: names.map(() => NONE),
      parameter: names.map((_, task) => (parameters[task] ? text(parameters[task]) : NONE)),
      device: names.map(() => text("cpu")),
      takes: names.map(() => 0),
    },
    edges: {
      task: sorted.map(([task]) => task),
      output: sorted.map(([task]) => outputs[task]++),
      next: sorted.map(([, next]) => next),
      input: sorted.map(() => 0),
    },
    roots: order.filter((task) => !entered.has(task)).map((task) => [task, 0]),
    calls: {
      path: calls.map(({ path }) => text(path)),
      class: calls.map(({ className }) => text(className)),
      parent: calls.map(({ parent }) => parent),
      index,
    },
    lines: [],
    saved: { task: [], slot: [], storage: [], bytes: [], meta: [], parameter: [], held: [] },
    schedules: [{ policy: "heap", title: "", order, keys: "created", by_hand: [], memory: null, memory_note: "" }],
    position: 0,
    records: {},
  };
  document.texts = [...numbers.keys()];
  return document;
}

/** Return a chain of `count` tasks without a module. */
export function chain(count: number): Sketch {
  return {
    names: new Array(count).fill("MulBackward0"),
    edges: Array.from({ length: count - 1 }, (_, task) => [task + 1, task]),
  };
}

/** Return a chain without a module and without any repetition: a square-free word of three letters. */
export function withoutRepeats(count: number): Sketch {
  const ones = (number: number) => number.toString(2).replaceAll("0", "").length;
  const kinds = ["MulBackward0", "AddmmBackward0", "TBackward0"];
  const names = Array.from({ length: count }, (_, task) => kinds[1 + (ones(task + 1) % 2) - (ones(task) % 2)]);
  return { ...chain(count), names };
}

/** Return a cell that is called repeatedly, with `tasks` tasks per call and one task between two calls. */
export function unrolled(calls: number, tasks: number): Sketch {
  const period = tasks + 1;
  return {
    ...chain(calls * period),
    names: Array.from({ length: calls * period }, (_, task) =>
      task % period < tasks ? "AddmmBackward0" : "CatBackward0",
    ),
    calls: Array.from({ length: calls }, () => ({ path: "cell", className: "LSTMCell", parent: NONE })),
    callOf: Array.from({ length: calls * period }, (_, task) =>
      task % period < tasks ? Math.floor(task / period) : NONE,
    ),
  };
}

/** Return repeated calls of a cell of which no two consecutive ones are alike. */
export function irregular(calls: number, tasks: number): Sketch {
  const random = randomNumbers(7);
  const sketch = unrolled(calls, tasks);
  const kinds = ["Addmm", "Sigmoid", "Tanh", "Mul"];
  return { ...sketch, names: sketch.names.map((name) => (name[0] === "C" ? name : `${kinds[random(4)]}Backward0`)) };
}

/** Return numbers below `limit`, always the same for a seed (mulberry32). */
export function randomNumbers(seed: number): (limit: number) => number {
  let state = seed;
  return (limit) => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * limit);
  };
}

/** Return a random graph with random module calls: nested, repeated, and not convex. */
export function randomSketch(seed: number, most: number): Sketch {
  const random = randomNumbers(seed);
  const count = 1 + random(most);
  const leaves = random(Math.min(6, count));
  const kinds = ["MulBackward0", "AddmmBackward0", "TBackward0"].slice(0, 1 + random(3));
  const names = Array.from({ length: count }, () => kinds[random(kinds.length)]);
  const pairs = new Map<string, [number, number]>();
  const join = (a: number, b: number) => {
    if (a !== b) pairs.set(`${Math.max(a, b)} ${Math.min(a, b)}`, [Math.max(a, b), Math.min(a, b)]);
  };
  if (random(2)) for (let task = 1; task < count; task++) join(task, task - 1);
  for (let left = random(2 * count); left; left--) join(random(count), random(count));
  const edges = [...pairs.values()];
  const uses = leaves
    ? Array.from({ length: random(30) }, (): [number, number] => [random(count), count + random(leaves)])
    : [];
  const calls: Call[] = [];
  for (let left = random(12); left; left--) {
    const parent = calls.length && random(2) ? random(calls.length) : NONE;
    const above = parent === NONE ? "" : `${calls[parent].path}.`;
    calls.push({
      path: above + ["block", "linear.0", "x"][random(3)],
      className: ["Block", "Linear"][random(2)],
      parent,
    });
  }
  // Either one call after another, as in a forward, or a random mixture.
  const inOrder = random(3) > 0;
  const cuts = calls.map(() => random(count)).sort((a, b) => a - b);
  const callOf = names.map((_, task) => {
    if (!calls.length) return NONE;
    return inOrder ? cuts.findIndex((cut) => task <= cut) : random(calls.length + 1) - 1;
  });
  return {
    names: [...names, ...new Array(leaves).fill("AccumulateGrad")],
    edges: [...edges, ...uses],
    calls,
    callOf: [...callOf, ...new Array(leaves).fill(NONE)],
    parameters: [
      ...names.map(() => ""),
      ...Array.from({ length: leaves }, (_, leaf) => (leaf % 2 ? `block.w${leaf}` : "")),
    ],
  };
}
