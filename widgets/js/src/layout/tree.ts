/** Which tasks are together in which box: modules, and runs of tasks where there is no module or one is too large. */

import { NONE } from "../model/document.ts";
import type { DeckGraph } from "../model/graph.ts";
import { Part, topChildren } from "./parts.ts";
import { ranksOf } from "./ranks.ts";
import { Settling } from "./settling.ts";

/** `children` are boxes and task ids, oldest first. */
export interface Box {
  id: number;
  parent: Box | null;
  /** The module's path; "" for a run of tasks or calls. */
  path: string;
  /** "blocks.3", "cell ×100", "tasks #0 to #999". */
  title: string;
  /** The module's class, "calls 0 to 99", or "". */
  subtitle: string;
  /** Without the tasks of parameters, which are beside their users. */
  children: (Box | number)[];
  /** How many tasks are in it, those of the parameters that have their pill in it included. */
  size: number;
  /** How many boxes it is in: 0 for the top. */
  depth: number;
  /** Its row in the box around it, from top to bottom. */
  rank: number;
  /** How many things it shows when it is open, a line of chips as one. */
  things: number;
}

export interface Tree {
  graph: DeckGraph;
  /** Everything; never closed. */
  top: Box;
  /** By id, the outermost first. */
  boxes: Box[];
  /** By task the innermost box that holds it, as an index in `boxes`; a parameter is where its pill is. */
  boxOf: Int32Array;
  /** By task its row in that box, from top to bottom. */
  rankOf: Int32Array;
  /** By task whether it is drawn as a pill: an AccumulateGrad that a task leads to. */
  pills: Uint8Array;
  /** By parameter's task the task that has its pill: one in its own module, else the first that used it. */
  owner: Int32Array;
  /** By task how many tasks the longest way from it has: the longest path is to be straight. */
  weight: Int32Array;
  /** The titles of modules that consist of one task, by that task, which is drawn in their place. */
  captions: Map<number, string>;
}

export function makeTree(graph: DeckGraph): Tree {
  const { task: from, next: to } = graph.document.edges;
  const pills = new Uint8Array(graph.count);
  const { starts } = graph.inEdges;
  for (let task = 0; task < graph.count; task++) {
    pills[task] = Number(graph.leaf[task] && starts[task] < starts[task + 1]);
  }
  const top: Box = {
    id: 0,
    parent: null,
    path: "",
    title: graph.document.title,
    subtitle: "",
    children: [],
    size: 0,
    depth: 0,
    rank: 0,
    things: 0,
  };
  const tree: Tree = {
    graph,
    top,
    boxes: [top],
    boxOf: new Int32Array(graph.count),
    rankOf: new Int32Array(graph.count),
    pills,
    owner: ownersOf(graph, pills),
    weight: ranksOf(graph.count, { sources: to, targets: from }).ranks,
    captions: new Map(),
  };
  fill(tree);
  for (let task = 0; task < graph.count; task++) {
    if (pills[task]) tree.boxOf[task] = tree.boxOf[tree.owner[task]];
  }
  for (const box of tree.boxOf) tree.boxes[box].size++;
  for (const { parent, size } of tree.boxes.toReversed()) if (parent) parent.size += size;
  return tree;
}

/** Settles each box, from the outermost inwards. */
function fill(tree: Tree): void {
  const { graph, boxes, pills } = tree;
  const { task, next } = graph.document.edges;
  const whole = new Part("", "", 0);
  whole.children = topChildren(graph, pills);
  const edges = Int32Array.from(task.keys()).filter((edge) => !pills[next[edge]] && task[edge] !== next[edge]);
  const work = [{ box: tree.top, part: whole, edges }];
  const settling = new Settling(graph);
  for (const { box, part, edges } of work) {
    const settled = settling.settle(part, edges);
    const inner = new Map(settled.parts.map((each) => [each.part, each.edges]));
    box.things = settled.things;
    for (const [single, around] of settled.alone) tree.captions.set(single, around.title);
    box.children = settled.children.map((child, index) => {
      if (typeof child === "number") {
        tree.boxOf[child] = box.id;
        tree.rankOf[child] = settled.ranks[index];
        return child;
      }
      const made = boxFor(child, box, boxes.length, settled.ranks[index]);
      boxes.push(made);
      work.push({ box: made, part: child, edges: inner.get(child) as typeof edges });
      return made;
    });
  }
}

function boxFor(part: Part, parent: Box, id: number, rank: number): Box {
  const { path, title, subtitle } = part;
  return { id, parent, path, title, subtitle, children: [], size: 0, depth: parent.depth + 1, rank, things: 0 };
}

/** By parameter's task the task that has its pill; NONE for other tasks. */
function ownersOf(graph: DeckGraph, pills: Uint8Array): Int32Array {
  const owner = new Int32Array(graph.count).fill(NONE);
  const own = new Uint8Array(graph.count);
  const { task, next } = graph.document.edges;
  for (let edge = 0; edge < task.length; edge++) {
    const parameter = next[edge];
    if (!pills[parameter]) continue;
    const user = task[edge];
    const isOwn = Number(isInModule(graph.parameter(parameter), graph.module(user)));
    const nearer = isOwn - own[parameter];
    if (owner[parameter] === NONE || nearer > 0 || (nearer === 0 && user < owner[parameter])) {
      owner[parameter] = user;
      own[parameter] = isOwn;
    }
  }
  return owner;
}

/** Whether `name` is a parameter of the module at `path`, or of one in it. */
export function isInModule(name: string, path: string): boolean {
  return path !== "" && name.startsWith(path) && name[path.length] === ".";
}

/**
 * The boxes that are open at first, with at most `most` things on the screen: those around the first root, so that the
 * start of the backward is seen, then the outermost, those nearest to the roots first.
 */
export function openAtFirst(tree: Tree, most: number): Set<number> {
  const open = new Set<number>();
  let shown = tree.top.things;
  const root = tree.graph.document.roots[0]?.[0] ?? 0;
  const tryToOpen = (box: Box): boolean => {
    if (open.has(box.id)) return true;
    if (shown - 1 + box.things > most) return false;
    shown += box.things - 1;
    open.add(box.id);
    return true;
  };
  for (const id of [...opened(tree, open, root)].sort((a, b) => a - b)) {
    if (!tryToOpen(tree.boxes[id])) break;
  }
  const queue = boxesIn(tree.top);
  for (const box of queue) if (tryToOpen(box)) queue.push(...boxesIn(box));
  return open;
}

/** The boxes directly in one, those first that a backward meets first. */
function boxesIn(box: Box): Box[] {
  const boxes = box.children.filter((child) => typeof child !== "number");
  return boxes.reverse().sort((a, b) => a.rank - b.rank);
}

/** `open` and whatever must be open so that the task is seen. */
export function opened(tree: Tree, open: ReadonlySet<number>, task: number): Set<number> {
  const all = new Set(open);
  for (let box: Box | null = tree.boxes[tree.boxOf[task]]; box?.parent; box = box.parent) all.add(box.id);
  return all;
}
