/** The chart of plans for mirroring. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { ticks } from "../src/frontier/svg_elements.ts";

test("a scale of bytes has some four round sizes, however high it is", () => {
  for (const highest of [1, 7, 1000, 3 * 1024 ** 2, 37.5 * 1024 ** 3]) {
    const found = ticks(highest);
    assert.equal(found[0], 0);
    assert.ok(found.length >= 2 && found.length <= 6 && found.at(-1)! <= highest);
    assert.ok(Number.isInteger(Math.log2(found[1])), "a power of two");
  }
});
