/** Round numbers on an axis. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { byteTicks, roundStep } from "../src/ticks.ts";

test("sizes stand at round binary steps, as many as have room", () => {
  for (const most of [1, 7, 1000, 1025, 3 * 1024 ** 2, 51.5 * 2 ** 20, 3 * 2 ** 30, 37.5 * 2 ** 30, 2 ** 41 - 1]) {
    for (const count of [1.9, 4.2, 5]) {
      const ticks = byteTicks(most, count);
      assert.ok(ticks.length >= 1 + Number(count > 2) && ticks.length <= count + 1, `${most}: ${ticks}`);
      assert.ok(ticks.every((tick, at) => tick === at * ticks[1] && tick <= most) || ticks.length === 1);
      assert.ok(ticks.length === 1 || Number.isInteger(Math.log2(ticks[1])), `${ticks}`);
    }
  }
});

test("a step is 1, 2 or 5 times a power of ten", () => {
  const steps = [1, 1.1, 2, 3, 5, 6, 10, 11, 1000, 0.03, 0.5].map(roundStep);
  assert.deepEqual(steps, [1, 2, 2, 5, 5, 10, 10, 20, 1000, 0.05, 0.5]);
});
