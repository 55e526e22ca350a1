/** The boxes of the graph: modules, and runs of tasks if there is no module or a module is too large. */

import { NONE } from "../model/document.ts";
import type { DeckGraph } from "../model/graph.ts";
import { Layers, layersSubtitle } from "./layers.ts";
import { Part, topChildren } from "./module_parts.ts";
import { ranksOf } from "./longest_paths.ts";
import { findShapes } from "./repeats.ts";
import { Settling } from "./group_siblings.ts";

/** A box. `children` are boxes and task ids, oldest first. */
export interface Box {
  /** "module": a module call; "run": a run of siblings; "views": a chain of views. */
  kind: "module" | "run" | "views";
  id: number;
  parent: Box | null;
  /** Path of the module; "" for a run of tasks or calls. */
  path: string;
  /** Title: "blocks.3", "cell ×100", "Sin, Mul and 4 more". */
  title: string;
  /** Subtitle: the module's class, "calls 0 to 99", or "". */
  subtitle: string;
  /** Children, without the tasks of parameters, which are drawn beside their users. */
  children: (Box | number)[];
  /** Number of tasks, including those of parameters whose pill is in the box. */
  size: number;
  /** Number of enclosing boxes: 0 for the top. */
  depth: number;
  /** Row in the enclosing box, from top to bottom. */
  rank: number;
  /** Number of things visible when the box is open; a row of chips counts as one. */
  things: number;
  /** Equal layers that the box represents. */
  layers: Layers | null;
}

export interface Tree {
  graph: DeckGraph;
  /** Root box; never closed. */
  top: Box;
  /** Boxes by id, outermost first. */
  boxes: Box[];
  /** Innermost box of each task, as an index in `boxes`. A parameter belongs to the box of its pill. */
  boxOf: Int32Array;
  /** Row of each task in that box, from top to bottom. */
  rankOf: Int32Array;
  /** For each task, 1 if it is drawn as a pill: an AccumulateGrad with an incoming edge. */
  pills: Uint8Array;
  /**
   * For each parameter's task, the task beside which its pill is drawn: one in its own module, or else the first that
   * used it.
   */
  owner: Int32Array;
  /** Parameters whose pill is drawn beside a task, by task. */
  owned: Map<number, number[]>;
  /** Length in tasks of the longest path from each task; the longest path is drawn straight. */
  weight: Int32Array;
  /** Titles of modules that consist of one task, by that task, which is drawn instead. */
  captions: Map<number, string>;
  /** The task that is drawn for each task: itself, or its counterpart in the drawn layer. */
  standIn: Int32Array;
  /**
   * Equal layers around each task, outermost first. For a task in a layer that is not drawn, the list ends with these
   * layers.
   */
  layersOf: Map<number, Layers[]>;
  /** For each edge between two of equal layers, the box that represents them; 0 for other edges. */
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

/** Set the content of each box, from the outermost inwards. */
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

/** Draw one of equal layers for all. Return the edges within it. */
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

/** Return the box of the layers that contain both tasks in different layers; 0 if there are none. */
function layersBetween({ layersOf }: Tree, one: number, other: number): number {
  for (let depth = 0; ; depth++) {
    const [layers, others] = [layersOf.get(one)?.[depth], layersOf.get(other)?.[depth]];
    if (!layers || layers !== others) return 0;
    if (layers.layerOf(one) !== layers.layerOf(other)) return layers.id;
    one = layers.at(one, layers.drawn);
    other = layers.at(other, layers.drawn);
  }
}

/** Return the innermost equal layers that a box or one of its ancestors represents. */
export function layersAround(box: Box | null): Layers | null {
  for (let each = box; each; each = each.parent) if (each.layers) return each.layers;
  return null;
}

/** Assign every undrawn task to the box of its counterpart, parameters to their pills, and sizes to boxes. */
function standInForOthers(tree: Tree): void {
  const { graph, pills, standIn, boxes, boxOf } = tree;
  for (let task = 0; task < graph.count; task++) {
    // repeats once per level of nested layers
    while (standIn[standIn[task]] !== standIn[task]) standIn[task] = standIn[standIn[task]];
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

/** Return the parameter that a task's output leads to. */
export function parameterAt({ graph, pills }: Pick<Tree, "graph" | "pills">, task: number, output: number): number {
  const { starts, values } = graph.outEdges;
  const { next, output: outputs } = graph.document.edges;
  for (let at = starts[task]; at < starts[task + 1]; at++) {
    if (outputs[values[at]] === output && pills[next[values[at]]]) return next[values[at]];
  }
  return NONE;
}

/**
 * For each parameter's task, return the task beside which its pill is drawn, preferably a drawn one; NONE for other
 * tasks.
 */
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

/** Return whether `name` is a parameter of the module at `path` or of one of its submodules. */
export function isInModule(name: string, path: string): boolean {
  return path !== "" && name.startsWith(path) && name[path.length] === ".";
}

/** Return `open` with the boxes added that must be open to show the task. */
export function opened(tree: Tree, open: ReadonlySet<number>, task: number): Set<number> {
  const all = new Set(open);
  for (let box: Box | null = tree.boxes[tree.boxOf[task]]; box?.parent; box = box.parent) all.add(box.id);
  return all;
}
