/**
 * Decode the memories on standard input for tests/widgets/deck/test_deck_memory.py, which compares them with Python's.
 */

import { readFileSync } from "node:fs";
import type { Memory } from "../src/model/document.ts";
import { MemoryLevels } from "../src/model/memory.ts";

function decoded(memory: Memory) {
  const levels = new MemoryLevels(memory);
  const storages = memory.nbytes.map((_, storage) => storage);
  return {
    levels: [...levels.levels],
    times: [...levels.times],
    peak: levels.peak,
    taskLevels: [...levels.taskLevels],
    categoryLevels: levels.categoryLevels.map((column) => [...column]),
    storages: levels.storages,
    lives: storages.map((storage) => levels.life(storage)),
    segments: storages.map((storage) => levels.segments(storage)),
  };
}

const memories = JSON.parse(readFileSync(0, "utf8")) as Memory[];
process.stdout.write(JSON.stringify(memories.map(decoded)));
