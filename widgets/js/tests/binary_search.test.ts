/** Binary searches, compared with linear searches. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { countBelow, countUpTo, firstWhere, lastUpTo } from "../src/binary_search.ts";

test("each search finds the place that counting finds", () => {
  for (const sorted of [[], [3], [1, 2, 2, 2, 5, 9], [4, 4, 4], Int32Array.from({ length: 100 }, (_, at) => at >> 1)]) {
    for (let limit = -1; limit < 60; limit += 0.5) {
      const values = [...sorted];
      const upTo = values.filter((value) => value <= limit).length;
      assert.equal(countBelow(sorted, limit), values.filter((value) => value < limit).length);
      assert.equal(countUpTo(sorted, limit), upTo);
      assert.equal(lastUpTo(sorted, limit), Math.max(0, upTo - 1));
    }
  }
  assert.deepEqual([0, 3, 7, 8].map((first) => firstWhere(7, (at) => at >= first)), [0, 3, 7, 7]);
});
