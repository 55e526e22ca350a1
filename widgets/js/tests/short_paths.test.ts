/** Shortened paths still distinguish the rows. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { pathsOf } from "../src/model/short_paths.ts";

test("a path loses its beginning, and then its middle, as far as it is told from the others of its name", () => {
  const row = (name: string, module: string) => ({ name, module });
  const rows = [
    row("attention", "encoder.layers.*.attn"), row("attention", "decoder.layers.*.attn"), row("attention", "decoder.layers.*.cross"),
    row("linear", "decoder.layers.*.attn"), row("conv", "stages.*"), row("relu", ""),
  ];
  const paths = pathsOf(rows);
  assert.deepEqual(paths[0], ["encoder.layers.*.attn", "encoder…attn"]);
  assert.deepEqual(paths[1].at(-1), "decoder…attn");
  assert.deepEqual(paths[2], ["decoder.layers.*.cross", "…layers.*.cross", "…*.cross", "…cross"]);
  assert.deepEqual(paths[3].at(-1), "…attn", "it is the only one of its name");
  assert.deepEqual([paths[4], paths[5]], [["stages.*"], [""]]);
});
