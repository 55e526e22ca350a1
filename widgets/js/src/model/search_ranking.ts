/** Ranking of search matches. */

import { typedTask } from "./find.ts";
import type { DeckGraph } from "./graph.ts";
import type { Replay } from "./replay.ts";

const RANKS = 4;

/** Return the best `most` matching tasks: by quality of the match, then the latest created first, as HEAP runs them. */
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

/** Rank a match: 1 if the name or parameter starts with the words, 2 if the module has this name, 3 otherwise. */
function rank(graph: DeckGraph, task: number, words: string): number {
  if (graph.titles[task].toLowerCase().startsWith(words) || graph.name(task).toLowerCase().startsWith(words)) return 1;
  const module = graph.module(task).toLowerCase();
  if (module === words || module.endsWith(`.${words}`) || graph.parameter(task).toLowerCase() === words) return 2;
  return 3;
}
