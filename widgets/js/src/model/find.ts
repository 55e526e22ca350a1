/** Which tasks a search means. */

import { bareName, type DeckGraph } from "./graph.ts";

/** By task whether each word of the query is in its name, module, parameter, source line or number; null without words. */
export function find(graph: DeckGraph, query: string): Uint8Array | null {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return null;
  const matches = new Uint8Array(graph.count).fill(1);
  for (const word of words) narrow(graph, word, matches);
  return matches;
}

/** Leaves out the tasks without this word. Strings are interned: each is looked at once, however many tasks have it. */
function narrow(graph: DeckGraph, word: string, matches: Uint8Array): void {
  const { texts, lines, tasks, calls } = graph.document;
  const has = (text: string) => text.toLowerCase().includes(word);
  const inText = texts.map((text) => has(bareName(text)));
  const inLine = lines.map((line) => has(line.short));
  const inCall = calls.path.map((path) => inText[path]);
  const isNumber = /^#?\d+$/.test(word);
  // NONE, -1, is in no list.
  for (let task = 0; task < matches.length; task++) {
    const found =
      inText[tasks.name[task]] || inText[tasks.parameter[task]] || inCall[tasks.call[task]] || inLine[tasks.line[task]];
    if (!found && !(isNumber && `#${task}`.includes(word))) matches[task] = 0;
  }
}
