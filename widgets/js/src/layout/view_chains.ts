/** Chains of views. They change no values and matter little in a backward, so each is one inconspicuous row. */

import type { DeckGraph } from "../model/graph.ts";
import { type Child, firstTask, Part } from "./module_parts.ts";
import type { Links } from "./longest_paths.ts";

const VIEWS = new Set(["View", "UnsafeView", "Clone", "Transpose", "Expand", "Permute"]);
const NONE = -1;
const SEVERAL = -2;

/** Fold each chain of two or more views into one part, except chains that are modules themselves. */
export function foldViews(
  children: readonly Child[],
  links: Links,
  graph: DeckGraph,
  alone: ReadonlyMap<number, Part>,
): Child[] {
  const isView = children.map(
    (child) => typeof child === "number" && !alone.has(child) && VIEWS.has(graph.titles[child]),
  );
  if (!isView.includes(true)) return [...children];
  const before = onlyNeighbours(children.length, links.targets, links.sources);
  const after = onlyNeighbours(children.length, links.sources, links.targets);
  const continues = (index: number) => {
    const next = after[index];
    return isView[index] && next >= 0 && isView[next] && before[next] === index;
  };
  const folded: Child[] = [];
  const gone = new Uint8Array(children.length);
  children.forEach((_, index) => {
    if (!continues(index) || (before[index] >= 0 && continues(before[index]))) return; // not the first of a chain
    const chain = [index];
    while (continues(chain[chain.length - 1])) chain.push(after[chain[chain.length - 1]]);
    if (chain.length === children.length) return; // the box itself is the chain
    for (const each of chain) gone[each] = 1;
    folded.push(partOf(chain.map((each) => children[each] as number)));
  });
  if (!folded.length) return [...children];
  return [...children.filter((_, index) => !gone[index]), ...folded].sort((a, b) => firstTask(a) - firstTask(b));
}

/** Return each child's only neighbour along its links; NONE, or SEVERAL. */
function onlyNeighbours(count: number, near: ArrayLike<number>, far: ArrayLike<number>): Int32Array {
  const only = new Int32Array(count).fill(NONE);
  for (let link = 0; link < near.length; link++) {
    if (only[near[link]] === NONE) only[near[link]] = far[link];
    else if (only[near[link]] !== far[link]) only[near[link]] = SEVERAL;
  }
  return only;
}

function partOf(tasks: number[]): Part {
  const part = new Part("", "", 0);
  part.isViews = true;
  part.labels = [`⋯ ${tasks.length} views`, ""];
  part.children = tasks.toSorted((a, b) => a - b);
  part.setTasks(Int32Array.from(part.children as number[]));
  return part;
}
