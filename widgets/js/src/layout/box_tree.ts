/** Which tasks are together in which box: modules, and runs of tasks where there is no module or one is too large. */

import { NONE } from "../model/document.ts";
import type { DeckGraph } from "../model/graph.ts";
import { Layers, layersSubtitle } from "./layers.ts";
import { Part, topChildren } from "./module_parts.ts";
import { ranksOf } from "./longest_paths.ts";
import { findShapes } from "./repeats.ts";
import { Settling } from "./group_siblings.ts";

/** `children` are boxes and task ids, oldest first. */
export interface Box {
  /** A module call, a run of siblings, or a chain of views. */
  kind: "module" | "run" | "views";
  id: number;
  parent: Box | null;
  /** The module's path; "" for a run of tasks or calls. */
  path: string;
  /** "blocks.3", "cell ×100", "Sin, Mul and 4 more". */
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
  /** The equal layers that it is drawn for. */
  layers: Layers | null;
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
  /** By task the parameters of which it has the pill. */
  owned: Map<number, number[]>;
  /** By task how many tasks the longest way from it has: the longest path is to be straight. */
  weight: Int32Array;
  /** The titles of modules that consist of one task, by that task, which is drawn in their place. */
  captions: Map<number, string>;
  /** By task the one that is drawn in its place: itself, or its like in the layer that is drawn. */
  standIn: Int32Array;
  /** By task the equal layers that it is in, outermost first: those of a task that isn't drawn end where it isn't. */
  layersOf: Map<number, Layers[]>;
  /** By edge that leads from one of equal layers to another the box that is drawn for them; 0 for others. */
  between: Int32Array;
}

export function makeTree(graph: DeckGraph): Tree {
  const { task: from, next: to } = graph.document.edges;
  const pills = new Uint8Array(graph.count);
  const { starts } = graph.inEdges;
  for (let task = 0; task < graph.count; task++) {
    pills[task] = Number(graph.leaf[task] && starts[task] < starts[task + 1]);
  }
  const top: Box = {
    kind: "module",
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
    layers: null,
  };
  const tree: Tree = {
    graph,
    top,
    boxes: [top],
    boxOf: new Int32Array(graph.count),
    rankOf: new Int32Array(graph.count),
    pills,
    owner: new Int32Array(0),
    owned: new Map(),
    weight: ranksOf(graph.count, { sources: to, targets: from }).ranks,
    captions: new Map(),
    standIn: Int32Array.from({ length: graph.count }, (_, task) => task),
    layersOf: new Map(),
    between: new Int32Array(from.length),
  };
  fill(tree);
  standInForOthers(tree);
  if (tree.layersOf.size) tree.between = Int32Array.from(from, (task, edge) => layersBetween(tree, task, to[edge]));
  return tree;
}

/** Settles each box, from the outermost inwards. */
function fill(tree: Tree): void {
  const { graph, boxes, pills } = tree;
  const { task, next } = graph.document.edges;
  const whole = new Part("", "", 0);
  const { children: outermost, parts, around, partOf } = topChildren(graph, pills);
  whole.children = outermost;
  const shapes = findShapes(graph, pills, parts, around, partOf);
  const edges = Int32Array.from(task.keys()).filter((edge) => !pills[next[edge]] && task[edge] !== next[edge]);
  const work = [{ box: tree.top, part: whole, edges }];
  const settling = new Settling(graph, pills, shapes);
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
      const made = boxFor(graph, child, box, boxes.length, settled.ranks[index]);
      boxes.push(made);
      const within = inner.get(child) as typeof edges;
      work.push({ box: made, part: child, edges: child.members.length ? drawOne(tree, made, child, within) : within });
      return made;
    });
  }
}

function boxFor(graph: DeckGraph, part: Part, parent: Box, id: number, rank: number): Box {
  const { path, title } = part;
  const subtitle = part.members.length ? layersSubtitle(part, graph) : part.subtitle;
  const kind = part.isViews ? "views" : part.labels && !path ? "run" : "module";
  return { layers: null, kind, id, parent, path, title, subtitle, children: [], size: 0, depth: parent.depth + 1, rank, things: 0 };
}

/** Has one of equal layers drawn for all. Gives the edges within that one. */
function drawOne(tree: Tree, box: Box, part: Part, edges: Int32Array): Int32Array<ArrayBuffer> {
  const { task, next } = tree.graph.document.edges;
  const layers = new Layers(box.id, layersAround(box.parent), part, tree.graph);
  const { members, drawn, titles } = layers;
  box.layers = layers;
  box.title = titles.length > 1 && titles[0] !== titles[drawn] ? `${titles[0]} – ${titles[drawn]}` : titles[drawn];
  members[drawn].forEach((shown, place) => {
    for (const member of members) {
      tree.standIn[member[place]] = shown;
      const around = tree.layersOf.get(member[place]);
      if (around) around.push(layers);
      else tree.layersOf.set(member[place], [layers]);
    }
  });
  const [last] = part.members.slice(-1);
  part.children = last.length === 1 && typeof last[0] !== "number" ? last[0].children : last;
  part.tasks = members[drawn] as typeof part.tasks;
  const isShown = new Set(members[drawn]);
  return Int32Array.from(edges).filter((edge) => isShown.has(task[edge]) && isShown.has(next[edge]));
}

/** The box of the layers that hold both tasks, each in another of them; 0 where there are none. */
function layersBetween({ layersOf }: Tree, one: number, other: number): number {
  for (let depth = 0; ; depth++) {
    const [layers, others] = [layersOf.get(one)?.[depth], layersOf.get(other)?.[depth]];
    if (!layers || layers !== others) return 0;
    if (layers.layerOf(one) !== layers.layerOf(other)) return layers.id;
    one = layers.at(one, layers.drawn);
    other = layers.at(other, layers.drawn);
  }
}

/** The innermost equal layers of which a box, or one around it, is the drawn one. */
export function layersAround(box: Box | null): Layers | null {
  for (let each = box; each; each = each.parent) if (each.layers) return each.layers;
  return null;
}

/** Says of every task that is not drawn itself where it is, of parameters who has their pill, and of boxes their size. */
function standInForOthers(tree: Tree): void {
  const { graph, pills, standIn, boxes, boxOf } = tree;
  for (let task = 0; task < graph.count; task++) {
    while (standIn[standIn[task]] !== standIn[task]) standIn[task] = standIn[standIn[task]]; // as deep as layers nest
    boxOf[task] = boxOf[standIn[task]];
  }
  tree.owner = ownersOf(graph, pills, standIn);
  tree.owner.forEach((user, parameter) => {
    if (user !== NONE) tree.owned.set(user, [...(tree.owned.get(user) ?? []), parameter]);
  });
  const { starts, values } = graph.outEdges;
  const { next, output } = graph.document.edges;
  const isDrawn = new Uint8Array(graph.count);
  for (let task = 0; task < graph.count; task++) {
    if (standIn[task] !== task) continue;
    for (let at = starts[task]; at < starts[task + 1]; at++) isDrawn[next[values[at]]] = 1;
  }
  for (let task = 0; task < graph.count; task++) {
    const shown = standIn[task];
    if (shown === task) continue;
    for (let at = starts[task]; at < starts[task + 1]; at++) {
      const parameter = next[values[at]];
      if (!pills[parameter] || isDrawn[parameter]) continue;
      const drawn = parameterAt(tree, shown, output[values[at]]);
      if (drawn !== NONE) standIn[parameter] = drawn;
    }
  }
  for (let task = 0; task < graph.count; task++) if (pills[task]) boxOf[task] = boxOf[tree.owner[task]];
  for (let task = 0; task < graph.count; task++) if (standIn[task] === task) boxes[boxOf[task]].size++;
  for (const { parent, size, layers } of boxes.toReversed()) if (parent) parent.size += size * (layers?.count ?? 1);
  for (const box of boxes) if (box.layers) box.size *= box.layers.count;
  tree.top.size = graph.count;
}

/** The parameter that a task's output leads to. */
export function parameterAt({ graph, pills }: Pick<Tree, "graph" | "pills">, task: number, output: number): number {
  const { starts, values } = graph.outEdges;
  const { next, output: outputs } = graph.document.edges;
  for (let at = starts[task]; at < starts[task + 1]; at++) {
    if (outputs[values[at]] === output && pills[next[values[at]]]) return next[values[at]];
  }
  return NONE;
}

/** By parameter's task the task that has its pill, one that is drawn where there is one; NONE for other tasks. */
function ownersOf(graph: DeckGraph, pills: Uint8Array, standIn: Int32Array): Int32Array {
  const owner = new Int32Array(graph.count).fill(NONE);
  const own = new Uint8Array(graph.count);
  const { task, next } = graph.document.edges;
  for (let edge = 0; edge < task.length; edge++) {
    const parameter = next[edge];
    if (!pills[parameter]) continue;
    const user = task[edge];
    const isDrawn = Number(standIn[user] === user);
    const isOwn = 2 * isDrawn + Number(isInModule(graph.parameter(parameter), graph.module(user)));
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

/** `open` and whatever must be open so that the task is seen. */
export function opened(tree: Tree, open: ReadonlySet<number>, task: number): Set<number> {
  const all = new Set(open);
  for (let box: Box | null = tree.boxes[tree.boxOf[task]]; box?.parent; box = box.parent) all.add(box.id);
  return all;
}
