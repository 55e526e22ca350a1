import assert from "node:assert/strict";
import { test } from "node:test";
import { linesAround } from "../src/model/source_lines.ts";

const CODE = ["def f(x):", "", "    y = x", "    return y", "", "f(1)"];

test("three lines are shown, the line among them", () => {
  assert.deepEqual(linesAround(CODE, 3), { shown: [2, 3], indent: 4 });
  assert.deepEqual(linesAround(["a", "b", "c", "d", "e"], 2).shown, [1, 2, 3]);
  assert.deepEqual(linesAround(["a", "b", "c"], 0).shown, [0, 1, 2]);
  assert.deepEqual(linesAround(["a", "b", "c"], 2).shown, [0, 1, 2]);
});

test("what is indented alike is moved to the left", () => {
  assert.equal(linesAround(["  a", "    b"], 1).indent, 2);
  assert.equal(linesAround(CODE, 0).indent, 0);
});

test("a line that is not in the code shows nothing", () => {
  assert.deepEqual(linesAround(CODE, 9).shown, []);
  assert.deepEqual(linesAround([], 0).shown, []);
});
