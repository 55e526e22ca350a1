import assert from "node:assert/strict";
import test from "node:test";
import type { Arrangement, Contained } from "../src/layout/arrangement.ts";
import { layOut, LayoutCache } from "../src/layout/layout.ts";
import type { Layout } from "../src/layout/layout_types.ts";
import { shorten, shortenMiddle, shortenPath, textWidth } from "../src/layout/text_width.ts";
import { firstView, READABLE } from "../src/layout/fit_to_size.ts";
import { fitView, roomIn } from "../src/graph/camera.ts";
import { makeTree, opened, type Tree } from "../src/layout/box_tree.ts";
import { NONE } from "../src/model/document.ts";
import { DeckGraph } from "../src/model/graph.ts";
import { checkEdges, checkGeometry, checkTasks } from "./geometry.ts";
import { chain, documentOf, graphOf, irregular, randomNumbers, randomSketch, type Sketch, unrolled, withoutRepeats } from "./graphs.ts";

/** Typical size of a deck's graph panel, pixels. */
const ROOM = { width: 1000, height: 560 };

function check(tree: Tree, open: ReadonlySet<number>, cache?: LayoutCache): Layout {
  const layout = layOut(tree, open, cache);
  checkTasks(tree, open, layout);
  checkEdges(tree, open, layout);
  checkGeometry(tree, layout);
  return layout;
}

function everyBox(tree: Tree): Set<number> {
  return new Set(tree.boxes.keys());
}

/** Return a module that is called 50 times with independent inputs: an Addmm above a T each time. */
function linear(calls: number): Sketch {
  const stack = 2 * calls;
  const [weight, bias] = [stack + 1, stack + 2];
  const edges = Array.from({ length: calls }, (_, call): [number, number][] => {
    const [t, addmm] = [2 * call, 2 * call + 1];
    return [
      [stack, addmm],
      [addmm, bias],
      [addmm, t],
      [t, weight],
    ];
  });
  return {
    names: [
      ...Array.from({ length: stack }, (_, task) => (task % 2 ? "AddmmBackward0" : "TBackward0")),
      "StackBackward0",
      "AccumulateGrad",
      "AccumulateGrad",
    ],
    edges: edges.flat(),
    calls: Array.from({ length: calls }, () => ({ path: "lin", className: "Linear", parent: NONE })),
    callOf: Array.from({ length: stack }, (_, task) => task >> 1),
    parameters: [...new Array(stack + 1).fill(""), "lin.weight", "lin.bias"],
  };
}

test("nothing overlaps, every task and edge is accounted for, whatever is open", () => {
  for (let seed = 0; seed < 30; seed++) {
    const tree = makeTree(graphOf(randomSketch(seed, seed % 10 ? 45 : 300)));
    const random = randomNumbers(seed + 1000);
    const some = new Set([...tree.boxes.keys()].filter(() => random(3) > 0));
    for (const open of [everyBox(tree), some, new Set<number>()]) check(tree, open);
  }
});

test("what a cache has seen before does not change a layout", () => {
  for (let seed = 0; seed < 10; seed++) {
    const tree = makeTree(graphOf(randomSketch(seed, 80)));
    const random = randomNumbers(seed);
    const cache = new LayoutCache();
    const open = everyBox(tree);
    for (let step = 0; step < 10; step++) {
      const toggled = random(tree.boxes.length);
      if (!open.delete(toggled)) open.add(toggled);
      assert.deepEqual(layOut(tree, open, cache), layOut(tree, open));
    }
  }
});

test("boxes of which nothing has changed are not arranged again", () => {
  class WatchedCache extends LayoutCache {
    readonly found = new Map<number, Arrangement>();
    override arrange(box: number, contained: Contained): Arrangement {
      const arrangement = super.arrange(box, contained);
      this.found.set(box, arrangement);
      return arrangement;
    }
  }
  const tree = makeTree(graphOf(irregular(10, 6)));
  const cache = new WatchedCache();
  const open = everyBox(tree);
  layOut(tree, open, cache);
  const before = new Map(cache.found);
  open.delete(4);
  layOut(tree, open, cache);
  const again = [...cache.found.keys()].filter((box) => cache.found.get(box) !== before.get(box));
  assert.deepEqual(again, [0]);
});

test("toggling a box changes the sizes of the boxes around it alone, if wires elsewhere stay what they are", () => {
  let compared = 0;
  for (let seed = 0; seed < 60; seed++) {
    const tree = makeTree(graphOf(randomSketch(seed, 80)));
    const open = everyBox(tree);
    const before = layOut(tree, open);
    for (const toggled of tree.boxes.slice(1)) {
      open.delete(toggled.id);
      const after = layOut(tree, open);
      open.add(toggled.id);
      const around = new Set([
        0,
        ...opened(tree, new Set(), toggled.children.find((child) => typeof child === "number") ?? 0),
      ]);
      for (const { box, rect } of after.boxes) {
        const was = before.boxes.find((each) => each.box === box);
        if (around.has(box.id) || box === toggled || !was) continue;
        if (wiresAcross(tree, before, box.id) !== wiresAcross(tree, after, box.id)) continue;
        assert.deepEqual([rect.width, rect.height], [was.rect.width, was.rect.height]);
        compared++;
      }
    }
  }
  assert(compared > 100);
});

/** Check that every task is in one box, and that every edge leads down in the innermost box around its ends. */
function checkTree(tree: Tree): void {
  const held = tree.boxes.flatMap((box) => box.children.filter((child) => typeof child === "number"));
  assert.deepEqual(
    held.sort((a, b) => a - b),
    Array.from(tree.boxOf.keys()).filter((task) => !tree.pills[task] && tree.standIn[task] === task),
  );
  assert.equal(tree.top.size, tree.boxOf.length);
  const way = (task: number) => {
    const ranks = [{ id: -1, rank: tree.rankOf[task] }];
    for (let box = tree.boxes[tree.boxOf[task]]; box.parent; box = box.parent)
      ranks.push({ id: box.id, rank: box.rank });
    return ranks.reverse();
  };
  const { task: from, next: to } = tree.graph.document.edges;
  from.forEach((task, edge) => {
    if (tree.pills[to[edge]] || [task, to[edge]].some((end) => tree.standIn[end] !== end)) return;
    const [source, target] = [way(task), way(to[edge])];
    const apart = source.findIndex(({ id }, level) => id === -1 || id !== target[level].id);
    assert(source[apart].rank < target[apart].rank, `edge from task ${task} to ${to[edge]} leads up`);
  });
}

/** Return the wires and stubs that leave or enter a box. */
function wiresAcross(tree: Tree, layout: Layout, id: number): string {
  const isIn = (item: number) => {
    for (let box = item < 0 ? tree.boxes[~item] : tree.boxes[tree.boxOf[item]]; box; box = box.parent as typeof box) {
      if (box.id === id) return true;
    }
    return false;
  };
  const wires = layout.wires.filter(({ from, to }) => isIn(from) !== isIn(to)).map(({ edges }) => edges.join());
  return [...wires, ...layout.stubs.filter(({ task }) => isIn(task)).map(({ kind, label }) => kind + label)].join(" ");
}

test("fifty calls that don't depend on each other are two rows of chips in one box", () => {
  const tree = makeTree(graphOf(linear(50)));
  const layout = check(tree, firstView(tree, ROOM).open);
  assert.deepEqual(
    layout.rows.map(({ label }) => label),
    ["Addmm ×50", "T ×50"],
  );
  assert.deepEqual(
    layout.pills.map(({ label }) => label),
    ["bias", "weight"],
  );
  assert.deepEqual(
    layout.boxes.map(({ title, subtitle }) => [title, subtitle]),
    [["lin", "Linear, 50 calls"]],
  );
  assert.equal(layout.boxes[0].box.size, 102);
});

test("fifty of them are read as wide as a notebook has room for them", () => {
  const tree = makeTree(graphOf(linear(50)));
  const { open, tall } = firstView(tree, { width: 671, height: 297 });
  const layout = layOut(tree, open, new LayoutCache(), tall);
  assert.equal(layout.rows.length, 2);
  assert(layout.width * READABLE <= 671);
});

test("one like equal layers, which is none of them, is not opened where they are closed", () => {
  const names: string[] = [];
  const calls: Sketch["calls"] = [];
  const callOf: number[] = [];
  for (let layer = 0; layer < 4; layer++) {
    const parent = calls.push({ path: `layers.${layer}`, className: "Layer", parent: NONE }) - 1;
    for (const part of ["norm", "first", "second", "third"]) {
      const call = calls.push({ path: `layers.${layer}.${part}`, className: "Linear", parent }) - 1;
      for (const name of layer || part !== "norm" ? ["TBackward0", "AddmmBackward0"] : ["AddmmBackward0", "ExpBackward0", "TBackward0"]) {
        callOf[names.push(name) - 1] = call;
      }
    }
  }
  const edges = names.slice(1).map((_, task): [number, number] => [task + 1, task]);
  const tree = makeTree(graphOf({ names, edges, calls, callOf }));
  const [layers, single] = ["layers.1 – layers.3", "layers.0"].map((title) => tree.boxes.find((box) => box.title === title)!);
  const seen = new Set<string>();
  for (let width = 120; width < 400; width += 5) {
    const { open } = firstView(tree, { width, height: 130 });
    assert(open.has(layers.id) || !open.has(single.id), `${width} pixels: layers.0 alone`);
    seen.add(`${open.has(layers.id)} ${open.has(single.id)}`);
  }
  assert(seen.has("false false") && seen.has("true true"), [...seen].join());
});

test("very many parallel calls are several boxes, none with more than it can show", () => {
  const tree = makeTree(graphOf(linear(20_000)));
  for (const box of tree.boxes) assert(box.things <= 120, `${box.title} shows ${box.things} things`);
  assert.equal(tree.top.children.length, 9);
  assert.deepEqual([tree.boxes[1].title, tree.boxes[1].subtitle], ["lin ×2500", "calls 0 to 2499"]);
});

test("a graph without modules opens as runs of tasks, and what is open stays bounded", () => {
  const tree = makeTree(graphOf(withoutRepeats(100_000)));
  for (const box of tree.boxes) assert(box.children.length <= 120);
  assert.deepEqual(tree.top.children.length, 10);
  assert.deepEqual([tree.boxes[1].title, tree.boxes[1].subtitle], ["T, Addmm, Mul", "10,000 tasks"]);
  assert.equal(tree.boxes[1].size, 10_000);
  const open = firstView(tree, ROOM).open;
  const layout = layOut(tree, open);
  assert(layout.tasks.length + layout.boxes.filter((box) => box.closed).length <= 200);
  const followed = layOut(tree, opened(tree, open, 54_321));
  assert(followed.tasks.some(({ task }) => task === 54_321));
  assert(followed.tasks.length <= 220);
});

test("many tasks with a rarely called module are split into runs of tasks", () => {
  const count = 600;
  const callOf = Array.from({ length: count }, (_, task) => (task % 300 < 3 ? Math.floor(task / 300) : NONE));
  const calls = [0, 1].map(() => ({ path: "block", className: "Block", parent: NONE }));
  const tree = makeTree(graphOf({ ...withoutRepeats(count), calls, callOf })); // once it never returned
  assert.equal(tree.boxes.filter(({ title }) => title.startsWith("block")).length, 2);
  for (const box of tree.boxes) assert(box.children.length <= 120);
});

test("of very many tasks in no module equal ones in a row are drawn once, from where the forward goes back", () => {
  const steps = 1500;
  const document = documentOf({
    ...chain(3 * steps + 4),
    names: ["ExpBackward0", ...new Array(steps + 1).fill(["MulBackward0", "AddBackward0", "TanhBackward0"]).flat()],
  });
  document.lines = [20, 21, 23].map((line) => {
    return { file: "/m/model.py", short: `model.py:${line}`, line, function: "forward", first: line, code: [""] };
  });
  document.tasks.line = document.tasks.name.map((_, task) => (task ? task % 3 : NONE)); // a step ends with its Mul
  const tree = makeTree(new DeckGraph(document));
  const [box] = tree.boxes.slice(1);
  assert.equal(tree.boxes.length, 2);
  assert.deepEqual([box.title, box.subtitle, box.layers?.count], ["Tanh, Mul, Add", "model.py:20–23 ×1,500", steps]);
  assert.deepEqual(tree.top.children.filter((child) => typeof child === "number"), [0, 1, 2, 3 * steps + 3]);
  check(tree, everyBox(tree));
});

test("equal calls of a cell are drawn once, whatever their number", () => {
  const tree = makeTree(graphOf(unrolled(1500, 4)));
  const [only] = tree.top.children;
  assert(typeof only !== "number");
  assert.deepEqual([tree.top.children.length, only.subtitle, only.size], [1, "(LSTMCell + 1 task) ×1,500", 7500]);
  assert.equal(only.layers?.count, 1500);
  const { open, tall } = firstView(tree, ROOM);
  const layout = layOut(tree, open, new LayoutCache(), tall);
  assert.deepEqual(layout.tasks.map(({ label }) => label), ["Cat", "Addmm", "Addmm", "Addmm", "Addmm"]);
  const between = layout.wires.filter(({ kind }) => kind === "out" || kind === "in");
  assert.equal(between.length, 2, "out of the layer, and into it");
  for (const { edges } of between) assert.equal(edges.length, 1499);
});

test("calls of a cell that differ are cut between them", () => {
  const tree = makeTree(graphOf(irregular(1500, 4)));
  const runs = tree.top.children.map((child) => (typeof child === "number" ? "" : `${child.title}, ${child.subtitle}`));
  assert.deepEqual(runs.slice(0, 2), ["cell ×50, calls 0 to 49", "cell ×50, calls 50 to 99"]);
  assert.equal(runs.length, 30);
  assert.equal(tree.boxes.find((box) => box.children[0] === 5 * 700)?.subtitle, "LSTMCell, call 700");
  const [first] = tree.boxes.filter((box) => box.title === "cell ×50");
  assert.deepEqual(
    first.children.slice(0, 3).map((child) => (typeof child === "number" ? child : child.title)),
    ["cell", 4, "cell"],
  );
  check(tree, opened(tree, firstView(tree, ROOM).open, 0));
});

test("runs never depend on each other in a circle, although modules are not convex", () => {
  for (let seed = 0; seed < 2; seed++) {
    const { names, edges, calls = [], callOf = [] } = randomSketch(seed, 40);
    const copies = 40;
    const many: Sketch = {
      names: new Array(copies).fill(names).flat(),
      edges: Array.from({ length: copies }, (_, copy) =>
        edges.map(([task, next]): [number, number] => [task + copy * names.length, next + copy * names.length]),
      ).flat(),
      calls: new Array(copies)
        .fill(calls)
        .flatMap((some: typeof calls, copy) =>
          some.map((call) => ({ ...call, parent: call.parent === NONE ? NONE : call.parent + copy * calls.length })),
        ),
      callOf: Array.from({ length: copies }, (_, copy) =>
        callOf.map((call) => (call === NONE ? NONE : call + copy * calls.length)),
      ).flat(),
    };
    // Some tasks use a much older one.
    const random = randomNumbers(seed);
    for (let left = 60; left; left--) {
      const [a, b] = [random(many.names.length), random(many.names.length)];
      if (many.names[a] !== "AccumulateGrad" && many.names[b] !== "AccumulateGrad" && a !== b)
        many.edges.push([Math.max(a, b), Math.min(a, b)]);
    }
    const tree = makeTree(graphOf(many));
    checkTree(tree);
    for (const box of tree.boxes) assert(box.things <= 120, `${box.title} shows ${box.things} things`);
    check(tree, firstView(tree, ROOM).open);
    layOut(tree, everyBox(tree));
  }
});

test("a run of tasks whose modules can't be boxes is called by the modules, else by its tasks and lines", () => {
  const { names, edges } = withoutRepeats(300);
  const calls = names.map((_, task) => ({ path: task < 150 ? "maker.steps" : "judge", className: "Net", parent: NONE }));
  const runs = makeTree(graphOf({ names, edges, calls, callOf: names.map((_, task) => task) })).top.children;
  const titles = runs.map((run) => (typeof run === "number" ? run : [run.title, run.subtitle]));
  assert.deepEqual(titles, [
    ["maker.steps", "100 tasks"],
    ["maker, judge", "100 tasks"],
    ["judge", "100 tasks"],
  ]);
});

test("a module that needs tasks made long after its first one comes after them", () => {
  const { names, edges } = withoutRepeats(300);
  const sketch: Sketch = {
    names,
    edges: [...edges.filter(([task, next]) => next !== 0 && task < 250), [250, 240], [250, 0]],
    calls: [{ path: "late", className: "Late", parent: NONE }],
    callOf: names.map((_, task) => (task === 0 || task === 250 ? 0 : NONE)),
  };
  const tree = makeTree(graphOf(sketch));
  checkTree(tree);
  const around = tree.boxes.find(({ path }) => path === "late")?.parent;
  assert.deepEqual([around?.title, tree.top.children.length], ["Addmm, T, Mul", 3]);
});

test("of modules in a circle both are dissolved, those above and below are not", () => {
  // above -> one -> two -> one -> below
  const paths = ["below", "below", "one", "two", "two", "one", "above", "above"];
  const names = paths.map(() => "MulBackward0");
  const calls = ["below", "one", "two", "above"].map((path) => ({ path, className: "Block", parent: NONE }));
  const callOf = paths.map((path) => calls.findIndex((call) => call.path === path));
  const tree = makeTree(graphOf({ ...chain(8), names, calls, callOf }));
  checkTree(tree);
  assert.deepEqual(
    tree.boxes.map(({ path }) => path),
    ["", "below", "above"],
  );
  check(tree, everyBox(tree));
});

test("small graphs open fully, of large ones as much as lets all of it be read", () => {
  const small = makeTree(graphOf(irregular(4, 6)));
  assert.equal(firstView(small, ROOM).open.size, small.boxes.length - 1);
  for (const calls of [20, 60, 400]) {
    const large = makeTree(graphOf(irregular(calls, 10)));
    const { open, tall } = firstView(large, ROOM);
    assert(open.size < large.boxes.length - 1);
    const { width, height } = layOut(large, open, new LayoutCache(), tall);
    assert(Math.max(width / ROOM.width, height / ROOM.height) <= 1 / READABLE, `${calls}: ${width} × ${height}`);
  }
});

test("in high panels, too, no wire leads up further than can be followed", () => {
  const graphs = [chain(40), irregular(4, 10), irregular(20, 10), ...[1, 2, 3].map((seed) => randomSketch(seed, 120))];
  let columns = 0;
  for (const sketch of graphs) {
    const tree = makeTree(graphOf(sketch));
    for (const size of [{ width: 790, height: 730 }, { width: 1000, height: 1000 }, { width: 2600, height: 1700 }]) {
      const { open, tall } = firstView(tree, roomIn(size));
      const layout = layOut(tree, open, new LayoutCache(), tall);
      const { k } = fitView(layout, size);
      const ways = layout.wires.flatMap(({ points }) => points.map((y, at) => (at > 1 && at % 2 ? (points[at - 2] - y) * k : 0)));
      const longest = Math.max(0, ...ways);
      if (longest > 300) columns++;
      assert(longest <= 500.5, `${size.width} × ${size.height}: ${longest}`);
    }
  }
  assert(columns > 6, "most of them are cut into columns");
});

test("views that follow each other are one quiet row, those that something else needs are not", () => {
  const names = ["Expand", "View", "Clone", "Mul", "Transpose", "View", "Add"].map((name) => `${name}Backward0`);
  const { edges } = chain(names.length);
  const tree = makeTree(graphOf({ names, edges }));
  const views = tree.boxes.filter(({ kind }) => kind === "views");
  assert.deepEqual(views.map(({ title, children }) => [title, children]), [
    ["⋯ 3 views", [0, 1, 2]],
    ["⋯ 2 views", [4, 5]],
  ]);
  const shut = check(tree, new Set());
  assert.deepEqual(shut.boxes.map(({ closed, rect }) => [closed, rect.height]), [[true, 20], [true, 20]]);
  const used = makeTree(graphOf({ names, edges: [...edges, [6, 1]] }));
  assert.deepEqual(used.boxes.filter(({ kind }) => kind === "views").map(({ children }) => children), [[0, 1], [4, 5]]);
});

test("opened() shows a task, and leaves open what is", () => {
  const tree = makeTree(graphOf(irregular(1500, 4)));
  const open = opened(tree, new Set([3]), 5000);
  assert(open.has(3));
  assert(layOut(tree, open).tasks.some(({ task }) => task === 5000));
});

test("a module of one task is that task, with the module's name", () => {
  const tree = makeTree(
    graphOf({ ...chain(3), calls: [{ path: "act", className: "ReLU", parent: NONE }], callOf: [NONE, 0, NONE] }),
  );
  const layout = check(tree, new Set());
  assert.equal(layout.tasks.find(({ task }) => task === 1)?.caption, "act");
  assert.equal(layout.boxes.length, 0);
});

test("a leaf that is itself the root is a task, and a parameter without users is, too", () => {
  const tree = makeTree(
    graphOf({ names: ["AccumulateGrad", "MulBackward0"], edges: [], parameters: ["x.weight", ""] }),
  );
  const layout = check(tree, firstView(tree, ROOM).open);
  assert.deepEqual(layout.tasks.map(({ label }) => label).sort(), ["Mul", "weight"]);
});

test("more parameters of one task than there is room for are one pill, closed boxes keep theirs", () => {
  const leaves = 12;
  const sketch: Sketch = {
    names: ["CatBackward0", "SumBackward0", ...new Array(leaves).fill("AccumulateGrad")],
    edges: [[1, 0], ...Array.from({ length: leaves }, (_, leaf): [number, number] => [0, 2 + leaf]), [1, 2]],
    parameters: ["", "", ...Array.from({ length: leaves }, (_, leaf) => `inner.p${leaf}`)],
    calls: [{ path: "inner", className: "Inner", parent: NONE }],
    callOf: [0, NONE],
  };
  const tree = makeTree(graphOf(sketch));
  const layout = check(tree, everyBox(tree));
  assert.deepEqual(
    layout.pills.map(({ label, tasks }) => [label, tasks.length]),
    [["12 parameters", leaves]],
  );
  assert.deepEqual(
    layout.stubs.map(({ label, task }) => [label, task]),
    [["inner.p0", 1]],
  );
});

test("wires that would fill the picture are stubs at both ends, at closed boxes as well", () => {
  const count = 60;
  const { names, edges } = chain(count);
  for (let task = 1; task < count - 10; task++) edges.push([count - 1, task]);
  const layout = check(makeTree(graphOf({ names, edges })), new Set());
  assert.deepEqual(
    layout.stubs.filter(({ kind }) => kind === "to").map(({ label }) => label),
    ["Mul ×49"],
  );
  assert.equal(layout.stubs.filter(({ kind }) => kind === "from").length, 49);

  const calls = ["a", "b"].map((path) => ({ path, className: "Block", parent: NONE }));
  const callOf = names.map((_, task) => (task < 2 ? 0 : task < count - 2 ? NONE : 1));
  const closed = check(makeTree(graphOf({ names, edges, calls, callOf })), new Set());
  const [stub] = closed.stubs.filter(({ kind }) => kind === "to");
  assert.equal(stub.task, ~(closed.boxes.find(({ title }) => title === "b")?.box.id ?? 0));
});

test("calls nested without end and modules around nothing else are no recursion", () => {
  const depth = 20_000;
  const calls = Array.from({ length: depth }, (_, level) => ({
    path: `x.${level}`,
    className: "Block",
    parent: level - 1,
  }));
  const tree = makeTree(graphOf({ ...chain(depth), calls, callOf: calls.map((_, level) => level) }));
  assert(Math.max(...tree.boxes.map((box) => box.depth)) < 110);
  layOut(tree, firstView(tree, ROOM).open);
});

test("edges that lead in a circle are refused with a sentence", () => {
  const graph = graphOf({
    names: ["MulBackward0", "MulBackward0"],
    edges: [
      [0, 1],
      [1, 0],
    ],
  });
  assert.throws(() => makeTree(graph), /damaged: its edges form a cycle/);
});

test("texts of any length fit, and are cut between characters", () => {
  for (const text of [
    "x".repeat(10_000),
    "👩‍💻".repeat(5000),
    "漢".repeat(10_000),
    "\u0301".repeat(10_000),
    "a b. ".repeat(3000),
  ]) {
    for (const short of [shorten(text, 100), shortenMiddle(text, 100)]) {
      assert(textWidth(short) <= 100 + 1e-9, `${short} is ${textWidth(short)} wide`);
      assert(short.includes("…") && short.length < 1000 && !/\p{Surrogate}/u.test(short));
    }
  }
  assert.equal(shorten("layers", 100), "layers");
  assert.match(shortenMiddle("encoder.".repeat(40) + "weight", 150), /^encoder.*….*weight$/);
  assert.match(shortenPath("encoder.".repeat(40) + "conv2", 150, true), /^….*encoder\.conv2$/);
  assert.equal(shortenPath("layers.3", 100), "layers.3");
});

test("names of 10,000 characters stay inside", () => {
  const long = "<script>".repeat(1250);
  const sketch = linear(3);
  sketch.names = sketch.names.map((name) => (name === "AccumulateGrad" ? name : `${long}${name}`));
  sketch.calls = sketch.calls?.map((call) => ({ ...call, path: long, className: long }));
  sketch.parameters = sketch.parameters?.map((name) => name && `${long}.${name}`);
  const tree = makeTree(graphOf(sketch));
  const layout = check(tree, everyBox(tree));
  assert(layout.width < 3000);
});
