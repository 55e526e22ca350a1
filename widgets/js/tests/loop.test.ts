/** The training page: pooling of steps, folding of modules, and selection by keys. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { bins, running, scaleOf } from "../src/loop/curves.ts";
import { ABSENT, floats, NO_SCALAR, readLoop, rowAt, said, type Finding, type Loop } from "../src/loop/loop_data.ts";
import { frameOf, stepTicks } from "../src/loop/draw_loop.ts";
import { baselineOf, sum } from "../src/loop/draw_memory.ts";
import { shell } from "../src/loop/side_panel.ts";
import { MOST_ROW, State } from "../src/loop/state.ts";
import { columnsOf, decades, fittingDepth, folded, outliers, pooled, shownRow } from "../src/loop/heat_map.ts";

const MODULES = ["head", "blocks.1.fc", "blocks.1.qkv", "blocks.0.fc", "blocks.0.qkv", "wte"];

function loop(steps: number, change: (gradients: Float32Array) => void = () => {}, findings: Finding[] = []): Loop {
  const gradients = new Float32Array(steps * MODULES.length).map((_, at) => 1 + (at % MODULES.length));
  change(gradients);
  return {
    title: "",
    steps,
    every: 10,
    sentences: [],
    findings,
    modules: MODULES,
    optimizers: ["SGD"],
    rows: Array.from({ length: 2 * steps }, (_, at) => at >> 1),
    samples: [0, 0, 10, 10],
    looks: [1, 1, 2, 2],
    memory: new Float32Array(10).fill(1024),
    baseline_steps: [1, 1, 2, 2],
    baselines: [1, 2, 3, 4, 5, 2 ** 40 + 1, 0, 0, 0, 0],
    gradients,
    weights: new Float32Array(2 * MODULES.length).fill(4),
    updates: new Float32Array(2 * MODULES.length).fill(1),
    losses: new Float32Array(steps).fill(1),
    learning_rates: new Float32Array(steps).fill(0.1),
    skipped: new Set(),
    kept: new Map(),
    black_box: false,
  };
}

function begun(given: Loop, width = 4000, height = 400): State {
  const state = new State(given);
  [state.width, state.height] = [width, height];
  state.begin();
  return state;
}

test("numbers out of base64 are those that went in", () => {
  const numbers = new Float32Array([1.5, -1, NaN, Infinity, NO_SCALAR]);
  assert.deepEqual(floats(Buffer.from(numbers.buffer).toString("base64")), numbers);
});

test("a step's row is the one that it is in, or the last before it", () => {
  const spans = [0, 3, 4, 4, 7, 9];
  assert.deepEqual([-1, 0, 3, 4, 6, 7, 99].map((step) => rowAt(spans, step)), [-1, 0, 0, 1, 1, 2, 2]);
});

test("the bytes from before a step are exact, and older pages have none", () => {
  assert.deepEqual(baselineOf(loop(3), 1), [2 ** 40 + 1, 0, 0, 0, 0]);
  assert.equal(sum(baselineOf(loop(3), 0)), 15);
  const arrays = { gradients: "", weights: "", updates: "", losses: "", learning_rates: "", memory: "" };
  const { baselines, baseline_steps } = readLoop(JSON.stringify({ version: 2, kept: [], ...arrays }), "");
  assert.deepEqual([baselines, baseline_steps], [[], []]);
});

test("a column shows the largest number of its steps, and NaN before all", () => {
  const state = begun(loop(100, (gradients) => ((gradients[50 * 6] = NaN), (gradients[51 * 6 + 1] = 70))));
  const columns = columnsOf(0, 100, 10);
  assert.deepEqual([columns.size, columns.count], [10, 10]);
  const cells = pooled(state.numbers, state.lines, columns);
  assert.deepEqual([...cells.slice(0, 10)], [1, 1, 1, 1, 1, NaN, 1, 1, 1, 1]);
  assert.deepEqual([...cells.slice(10, 20)], [2, 2, 2, 2, 2, 70, 2, 2, 2, 2]);
  assert.equal(shownRow(state.numbers, state.lines[0], columns, 5), 50);
  assert.equal(shownRow(state.numbers, state.lines[1], columns, 5), 51);
});

test("a line that is not in view counts for no other", () => {
  const state = begun(loop(20, (gradients) => (gradients[0] = NaN)));
  assert.deepEqual([...pooled(state.numbers, [state.lines[1]], columnsOf(0, 20, 2))], [2, 2]);
});

test("a row of several steps fills all columns that it covers", () => {
  const numbers = { spans: [0, 7, 8, 8, 9, 9], values: new Float32Array([3, 1, ABSENT]), width: 1 };
  const cells = pooled(numbers, [{ name: "a", modules: [0] }], columnsOf(0, 10, 10));
  assert.deepEqual([...cells], [3, 3, 3, 3, 3, 3, 3, 3, 1, ABSENT]);
});

test("columns stay where they are when the range moves", () => {
  const [one, other] = [columnsOf(0, 1000, 100), columnsOf(3, 1003, 100)];
  assert.equal(one.size, other.size);
  assert.equal((other.first - one.first) % one.size, 0);
  assert.ok(other.first <= 3 && other.first + other.size * other.count >= 1003);
});

test("modules fold into lines by the first parts of their paths, which hold each of them once", () => {
  assert.deepEqual(folded(MODULES, 2).map((line) => line.name), ["head", "blocks.1", "blocks.0", "wte"]);
  assert.deepEqual(folded(MODULES, 1).map((line) => line.modules), [[0], [1, 2, 3, 4], [5]]);
  assert.equal(fittingDepth(MODULES, 6), 3);
  assert.equal(fittingDepth(MODULES, 5), 2);
  assert.equal(fittingDepth(MODULES, 1), 1);
});

test("unfolding keeps the module that was chosen", () => {
  const state = begun(loop(20));
  state.goLine(3);
  assert.equal(state.lines[state.line].name, "blocks.0.fc");
  state.foldBy(-1);
  assert.equal(state.lines[state.line].name, "blocks.0");
  state.foldBy(1);
  assert.equal(state.lines[state.line].name, "blocks.0.fc");
});

test("ten times the numbers around is an outlier, and nothing else is", () => {
  const cells = new Float32Array(40).fill(2);
  [cells[7], cells[20], cells[30]] = [19.9, 20, NaN];
  assert.deepEqual([...outliers(cells, 40).entries()].filter(([, on]) => on).map(([at]) => at), [20]);
});

test("colours span five decades at most, below the highest finite number", () => {
  assert.deepEqual(decades(new Float32Array([1e-9, 100, NaN, ABSENT, 0])), [-3, 2]);
  const [low, high] = decades(new Float32Array([5, 5]));
  assert.ok(high > low);
});

test("arrow keys choose the next column's worst step, and single steps when there is room", () => {
  const state = begun(loop(1000, (gradients) => (gradients[505 * 6] = 90)), 400);
  assert.equal(state.columns.size, 10);
  state.goLine(0);
  state.go(495);
  state.move(1);
  assert.equal(state.step, 505);
  state.view(480, 560);
  state.move(1);
  assert.equal(state.step, 506);
});

test("what is chosen is brought into view", () => {
  const state = begun(loop(1000), 400);
  state.zoom(0.1, 10);
  assert.ok(state.to - state.from >= 99 && state.to < 200);
  state.go(900);
  assert.ok(state.from <= 900 && state.to > 900 && state.to <= 1000);
  state.height = 18;
  state.goLine(5);
  assert.ok(state.offset <= 5 && state.offset + state.room > 5);
});

test("a view is never wider than the loop, and never outside of it", () => {
  const state = begun(loop(100), 400);
  state.zoom(1000, 50);
  assert.deepEqual([state.from, state.to], [0, 100]);
  state.zoom(1e-6, 99.5);
  assert.ok(state.to - state.from === 8 && state.to <= 100);
  state.pan(-1e6);
  assert.equal(state.from, 0);
});

test("findings lead to their step and module, and without a module to the first line that is not finite", () => {
  const finding = (step: number, module: string | null): Finding => {
    return { kind: "norm", step, last_step: null, sentence: "", module, tensor: null, size: null, certain: true };
  };
  const findings = [finding(40, "blocks.0"), finding(60, null)];
  const state = begun(loop(100, (gradients) => (gradients[60 * 6 + 2] = Infinity)));
  assert.equal(state.step, 99);
  const found = begun(loop(100, (gradients) => (gradients[60 * 6 + 2] = Infinity), findings));
  assert.deepEqual([found.finding, found.step, found.lines[found.line].name], [0, 40, "blocks.0.fc"]);
  found.chooseBy(1);
  assert.deepEqual([found.finding, found.step, found.lines[found.line].name], [1, 60, "blocks.1.qkv"]);
  found.foldBy(-1);
  assert.equal(found.lines[found.line].name, "blocks.1");
  found.foldBy(1);
  assert.equal(found.lines[found.line].name, "blocks.1.qkv", "the finding's module, not the line's first");
  found.chooseBy(1);
  assert.equal(found.finding, 0);
});

test("the update ratio is the update over the weight, where there was one", () => {
  const given = loop(20);
  given.weights[1] = 0;
  given.updates[2] = ABSENT;
  const state = begun(given);
  state.show("update ratio");
  assert.deepEqual([...state.numbers.values.slice(0, 4)], [0.25, ABSENT, ABSENT, 0.25]);
  assert.deepEqual(state.numbers.spans, [0, 9, 10, 19], "it holds until it is looked at again");
  state.go(17);
  assert.equal(state.row, 1);
  assert.equal(state.sampledAt, 10, "step 17 itself was not measured");
  state.go(10);
  assert.equal(state.sampledAt, null);
  assert.deepEqual([0, 1, 9, 10, 11].map((step) => state.isMeasured(step, step)), [true, false, false, true, false]);
  assert.ok(state.isMeasured(5, 14), "a column of several steps has one of them");
});

test("a curve keeps the least and the highest of what one place holds, and what was not finite", () => {
  const values = new Float32Array([1, 5, 2, NaN, 3, 3, NO_SCALAR, NO_SCALAR]);
  const spans = Array.from({ length: 16 }, (_, at) => at >> 1);
  const found = bins(spans, values, 1, 0, [0, 8], 4);
  assert.deepEqual(found.map(({ low, high, bad }) => [low, high, bad]), [[1, 5, false], [2, 2, true], [3, 3, false]]);
  assert.deepEqual(found.map(({ steps }) => steps), [2, 2, 2], "the legend says how many steps a point has");
  assert.deepEqual(running([1, 1, 9, 1, 1]), [1, 1, 1, 1, 1]);
});

test("a loss is drawn by powers of ten only where it is positive", () => {
  assert.equal(scaleOf(0.1, 10, "log").log, true);
  assert.deepEqual(scaleOf(0.1, 10, "log").share(1), 0.5);
  assert.equal(scaleOf(-1, 10, "log").log, false);
  assert.equal(scaleOf(2, 2, "linear").share(2), 0.5);
});

test("numbers of steps are round and not too many", () => {
  assert.deepEqual(stepTicks(0, 64, 7), [0, 10, 20, 30, 40, 50, 60]);
  assert.deepEqual(stepTicks(0, 3, 10), [0, 1, 2]);
  assert.ok(stepTicks(1234, 987654, 9).length <= 9);
});

test("numbers are said as people read them, and a folder is one word of a shell", () => {
  assert.deepEqual([NaN, Infinity, ABSENT, 0.05123, 3.2e-5].map(said), ["NaN", "Inf", "none", "0.0512", "3.2e−5"]);
  assert.equal(shell("box/step_3"), "box/step_3");
  assert.equal(shell("it's $(rm)"), "'it'\\''s $(rm)'");
});

test("what few lines of the heat map leave is the memory's, and many lines leave it its least", () => {
  const [few, many] = [3, 60].map((lines) => frameOf(1072, 838, 9, lines));
  assert.ok(few.heatHeight - 3 * MOST_ROW < 20, "no hole below three lines");
  assert.equal(few.heatTop + few.heatHeight + 6, few.memoryTop);
  assert.ok(few.rulerTop - few.memoryTop > 3 * (many.rulerTop - many.memoryTop));
  assert.ok(many.heatHeight > 500);
});

test("memory that is the same in all steps is low, and the heat map and the losses have the rest", () => {
  const [flat, varied] = [false, true].map((varies) => frameOf(1072, 838, 9, 8, varies));
  assert.equal(flat.rulerTop - flat.memoryTop, 140);
  assert.ok(varied.rulerTop - varied.memoryTop > 140);
  assert.ok(flat.heatHeight >= 8 * MOST_ROW && flat.rateTop > varied.rateTop);
});
