/** Which matches of a search are offered first. */

import { typedTask } from "./find.ts";
import type { DeckGraph } from "./graph.ts";
import type { Replay } from "./replay.ts";

const RANKS = 4;

/** The best `most` of the matching tasks: by how well they match, then the latest created first, as HEAP runs them. */
export function suggest(replay: Replay, matches: Uint8Array, query: string, most: number): number[] {
  const words = query.trim().toLowerCase();
  const typed = typedTask(replay, words);
  const ranks: number[][] = Array.from({ length: RANKS }, () => []);
  for (let task = matches.length - 1; task >= 0; task--) {
    if (!matches[task]) continue;
    const found = ranks[task === typed ? 0 : rank(replay.graph, task, words)];
    if (found.length < most) found.push(task);
  }
  return ranks.flat().slice(0, most);
}

/** Of what is not its number: 1: its name or parameter starts so; 2: its module is called so; 3: somewhere else. */
function rank(graph: DeckGraph, task: number, words: string): number {
  if (graph.titles[task].toLowerCase().startsWith(words) || graph.name(task).toLowerCase().startsWith(words)) return 1;
  const module = graph.module(task).toLowerCase();
  if (module === words || module.endsWith(`.${words}`) || graph.parameter(task).toLowerCase() === words) return 2;
  return 3;
}
