/** Task search. */

import { bareName } from "./graph.ts";
import type { Replay } from "./replay.ts";

/**
 * A task number as users type it: the place in the run that is shown (`53` or `53rd`), or the creation number (`#26`).
 */
const NUMBER = /^(?:(\d+)(?:st|nd|rd|th)?|#(\d+))$/;

/** Return the task typed as a number: -1 if there is no such task, undefined if the text is not a number. */
export function typedTask(replay: Replay, typed: string): number | undefined {
  const found = NUMBER.exec(typed.trim().toLowerCase());
  if (!found) return undefined;
  const [, place, created] = found;
  if (place !== undefined) return replay.running(Number(place) - 1) ?? -1;
  return Number(created) < replay.graph.count ? Number(created) : -1;
}

/**
 * Return, for each task, whether all words of the query occur in its name, module, parameter, source line or number;
 * null for a query without words.
 */
export function find(replay: Replay, query: string): Uint8Array | null {
  const { graph } = replay;
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return null;
  const matches = new Uint8Array(graph.count).fill(1);
  for (const word of words) narrow(replay, word, matches);
  return matches;
}

/**
 * Clear the matches of tasks without this word. Strings are interned, so each is searched once however many tasks share
 * it.
 */
function narrow(replay: Replay, word: string, matches: Uint8Array): void {
  const { graph } = replay;
  const { texts, lines, tasks, calls } = graph.document;
  const has = (text: string) => text.toLowerCase().includes(word);
  const inText = texts.map((text) => has(bareName(text)));
  const inLine = lines.map((line) => has(line.short));
  const inCall = calls.path.map((path, call) => inText[path] || inText[calls.class[call]]);
  const typed = typedTask(replay, word);
  // NONE is -1 and therefore in none of the lists.
  for (let task = 0; task < matches.length; task++) {
    const found =
      inText[tasks.name[task]] || inText[tasks.parameter[task]] || inCall[tasks.call[task]] || inLine[tasks.line[task]];
    if (!found && task !== typed) matches[task] = 0;
  }
}
