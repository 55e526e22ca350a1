/** Which tasks a search means. */

import { bareName } from "./graph.ts";
import type { Replay } from "./replay.ts";

/** A task as people type it: its place in the run that is shown, `53` or `53rd`; `#26`: the one created as this number. */
const NUMBER = /^(?:(\d+)(?:st|nd|rd|th)?|#(\d+))$/;

/** The task that is typed as a number; -1 where no task has it; undefined: it is no number. */
export function typedTask(replay: Replay, typed: string): number | undefined {
  const found = NUMBER.exec(typed.trim().toLowerCase());
  if (!found) return undefined;
  const [, place, created] = found;
  if (place !== undefined) return replay.running(Number(place) - 1) ?? -1;
  return Number(created) < replay.graph.count ? Number(created) : -1;
}

/** By task whether each word of the query is in its name, module, parameter, source line or number; null without words. */
export function find(replay: Replay, query: string): Uint8Array | null {
  const { graph } = replay;
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return null;
  const matches = new Uint8Array(graph.count).fill(1);
  for (const word of words) narrow(replay, word, matches);
  return matches;
}

/** Leaves out the tasks without this word. Strings are interned: each is looked at once, however many tasks have it. */
function narrow(replay: Replay, word: string, matches: Uint8Array): void {
  const { graph } = replay;
  const { texts, lines, tasks, calls } = graph.document;
  const has = (text: string) => text.toLowerCase().includes(word);
  const inText = texts.map((text) => has(bareName(text)));
  const inLine = lines.map((line) => has(line.short));
  const inCall = calls.path.map((path, call) => inText[path] || inText[calls.class[call]]);
  const typed = typedTask(replay, word);
  // NONE, -1, is in no list.
  for (let task = 0; task < matches.length; task++) {
    const found =
      inText[tasks.name[task]] || inText[tasks.parameter[task]] || inCall[tasks.call[task]] || inLine[tasks.line[task]];
    if (!found && task !== typed) matches[task] = 0;
  }
}
