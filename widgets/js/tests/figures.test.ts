/** Figures of saved pages: stacked areas, treemap boxes, axis ticks and hover texts. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { lastUpTo } from "../src/binary_search.ts";
import { area, stacked } from "../src/figures/areas.ts";
import { type HoverData, linesOf } from "../src/figures/data.ts";
import { distance } from "../src/figures/items.ts";
import { squarified } from "../src/figures/tree.ts";
import { ticksBetween } from "../src/figures/window.ts";

test("what is hidden takes no height, and what stood upon it comes down", () => {
  const heights = [
    [10, 20],
    [5, 5],
    [1, 2],
  ];
  const whole = stacked(heights, [false, false, false], 100);
  assert.deepEqual(whole.map(({ tops }) => tops), [[90, 80], [85, 75], [84, 73]]);
  const less = stacked(heights, [false, true, false], 100);
  assert.deepEqual(less[1].tops, less[1].floors);
  assert.deepEqual(less[2], { tops: [89, 78], floors: [90, 80] });
});

test("an area of steps goes along its tops and back along its floors", () => {
  assert.equal(area([0, 3, 6], [10, 20, 20], [30, 40, 40]), "M0 10h3v10h3V40h-3v-10h-3z");
});

test("boxes fill their room, and are as large as their values", () => {
  const values = [6, 3, 2, 1];
  const boxes = squarified(values, { x: 10, y: 20, width: 120, height: 60 });
  for (const [at, { x, y, width, height }] of boxes.entries()) {
    assert.ok(Math.abs(width * height - values[at] * 600) < 1e-6);
    assert.ok(x >= 10 - 1e-6 && y >= 20 - 1e-6 && x + width <= 130 + 1e-6 && y + height <= 80 + 1e-6);
  }
});

test("an axis has round numbers, each where it belongs", () => {
  assert.deepEqual(ticksBetween(0, 25, 6), [[0, 0], [5, 0.2], [10, 0.4], [15, 0.6], [20, 0.8], [25, 1]]);
  for (const [low, high] of [[7.5, 12.5], [0, 3201], [0.001, 0.0042]]) {
    const found = ticksBetween(low, high, 8);
    assert.ok(found.length >= 3 && found.length <= 10);
    for (const [value, share] of found) assert.ok(Math.abs(low + share * (high - low) - value) < 1e-9 * high);
  }
});

test("a point is said by its curve's template, text for text", () => {
  const told: HoverData = { texts: ["1 KiB", "made", "%{x} &lt;b&gt;"], lists: [[0, 0], [2, [1, 2]]], figures: {} };
  const said = { say: "<b>heap</b>  %{customdata[0]} after %{x}: %{customdata[1]}", columns: [0, 1] };
  assert.deepEqual(linesOf(told, said, 0, "7"), ["<b>heap</b>  1 KiB after 7: %{x} &lt;b&gt;"]);
  assert.deepEqual(linesOf(told, said, 1, "7"), ["<b>heap</b>  1 KiB after 7: made", "%{x} &lt;b&gt;"]);
});

test("the nearest point is found, on a bar and beside it", () => {
  const bar = { trace: 0, at: 0, start: 0.25, stop: 0.5, top: 10, bottom: 20 };
  assert.equal(distance(bar, 0.3, 15, 1000), 0);
  assert.equal(distance(bar, 0.55, 15, 1000).toFixed(6), "50.000000");
  assert.equal(distance(bar, 0.3, 5, 1000), 5);
  assert.deepEqual([-1, 0, 2.5, 9].map((value) => lastUpTo([0, 1, 2, 3], value)), [0, 0, 2, 3]);
});
