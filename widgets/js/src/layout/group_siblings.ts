/** Grouping of tasks into the children of each box. Siblings must never depend on each other in a cycle. */

import { ROW_LENGTH, ROW_LINE } from "../../../../inspector/drawing/layout_constants.json";
import { DocumentError } from "../model/check_document.ts";
import type { DeckGraph } from "../model/graph.ts";
import { type Child, firstTask, Part } from "./module_parts.ts";
import { type Links, lowerSources, ranksOf } from "./longest_paths.ts";
import { foldRuns, type Joined } from "./repeats.ts";
import { MOST_THINGS, cutIntoRuns } from "./split_large_boxes.ts";
import { foldViews } from "./view_chains.ts";

/** Maximum number of tasks in a box of parallel calls. */
const MOST_PARALLEL = 5000;

/** The children of one box, with the content of each. */
export interface Settled {
  children: Child[];
  /** Row of each child, from top to bottom. */
  ranks: Int32Array;
  /** Number of things visible when the box is open; a row of chips counts as one. */
  things: number;
  /** Modules that consist of one task, by that task, which is drawn instead. */
  alone: Map<number, Part>;
  /** Parts among the children, each with its inner edges. */
  parts: { part: Part; edges: Int32Array }[];
}

export class Settling {
  /** Index of the child that contains each task, in the box being processed. */
  private readonly place: Int32Array;

  /** `shapes` has equal numbers for equal tasks. */
  constructor(
    private readonly graph: DeckGraph,
    private readonly pills: Uint8Array,
    private readonly shapes: Int32Array,
  ) {
    this.place = new Int32Array(graph.count);
  }

  /** Group the tasks of a box. `edges` are the edges between them. */
  settle(box: Part, edges: Int32Array): Settled {
    let { children, ranks, links } = this.withoutCircles(box.children, edges);
    const isRun = box.labels !== null && box.path === "";
    if (!isRun) {
      const merged = mergeParallelCalls(children, ranks);
      if (merged.length < children.length) ({ children, ranks, links } = this.withoutCircles(merged, edges));
    }
    const isMuch = this.countThings(children, ranks) > MOST_THINGS;
    if (isMuch || children.some((child) => typeof child !== "number")) {
      const lineOf = isMuch ? (child: Child) => this.graph.sourceLine(firstTask(child)) : undefined;
      const folded = foldRuns(children, this.shapes, this.joined(children, edges), lineOf);
      if (folded.length < children.length) ({ children, ranks, links } = this.withoutCircles(folded, edges));
    }
    const scope = box.path || box.above;
    const alone = new Map<number, Part>();
    children = children.map((child) => this.unwrapped(child, scope, alone));
    const quiet = box.isViews ? children : foldViews(children, links, this.graph, alone);
    if (quiet.length < children.length) {
      children = quiet;
      links = this.linksBetween(children, edges);
      ({ ranks } = ranksOf(children.length, links));
    }
    lowerSources(ranks, links);
    let things = this.countThings(children, ranks);
    if (things > MOST_THINGS) {
      children = cutIntoRuns(children, links, scope, this.graph);
      links = this.linksBetween(children, edges);
      ({ ranks } = ranksOf(children.length, links));
      lowerSources(ranks, links);
      things = children.length;
    }
    return { children, ranks, things, alone, parts: this.withInnerEdges(children, edges) };
  }

  /** Replace a part that has one task and no parameter by the task, with the name of the innermost module around it. */
  private unwrapped(child: Child, scope: string, alone: Map<number, Part>): Child {
    if (typeof child === "number") return child;
    let part = child;
    while (part.tasks.length === 1 && typeof part.children[0] !== "number") part = part.children[0];
    part.above = scope;
    for (const each of part.members.flat()) if (typeof each !== "number") each.above = scope;
    if (part.tasks.length > 1 || this.hasParameter(part.first)) return part;
    alone.set(part.first, part);
    return part.first;
  }

  private hasParameter(task: number): boolean {
    const { starts, values } = this.graph.outEdges;
    const edges = values.subarray(starts[task], starts[task + 1]);
    return edges.some((edge) => this.pills[this.graph.document.edges.next[edge]] === 1);
  }

  /** Dissolve parts on a cycle; a module need not be convex in the graph. */
  private withoutCircles(all: Child[], edges: Int32Array): { children: Child[]; ranks: Int32Array; links: Links } {
    let children = all;
    for (;;) {
      const links = this.linksBetween(children, edges);
      const { ranks, order } = ranksOf(children.length, links);
      if (order.length === children.length) return { children, ranks, links };
      const onCircle = new Uint8Array(children.length).fill(1);
      const upwards = ranksOf(children.length, { sources: links.targets, targets: links.sources });
      for (const found of [order, upwards.order]) for (const index of found) onCircle[index] = 0;
      const pieces = children.flatMap((child, index) =>
        typeof child === "number" || !onCircle[index] ? [child] : piecesOf(child),
      );
      if (pieces.length === children.length && pieces.every((piece, index) => piece === children[index])) {
        throw new DocumentError("This deck's data is damaged: its edges form a cycle.");
      }
      children = pieces.sort((a, b) => firstTask(a) - firstTask(b));
    }
  }

  private linksBetween(children: readonly Child[], edges: Int32Array): Links {
    const { place } = this;
    const { task, next } = this.graph.document.edges;
    children.forEach((child, index) => {
      if (typeof child === "number") place[child] = index;
      else for (const each of child.tasks) place[each] = index;
    });
    const sources: number[] = [];
    const targets: number[] = [];
    for (const edge of edges) {
      const [source, target] = [place[task[edge]], place[next[edge]]];
      if (source === target) continue;
      sources.push(source);
      targets.push(target);
    }
    return { sources, targets };
  }

  /** Return a function for the edges of each child to its siblings, collected at its first call. */
  private joined(children: readonly Child[], edges: Int32Array): Joined {
    let found: [number, string][][] | null = null;
    const { place } = this;
    const { task, next, output, input } = this.graph.document.edges;
    const gather = () => {
      const all: [number, string][][] = children.map(() => []);
      for (const edge of edges) {
        const [source, target] = [place[task[edge]], place[next[edge]]];
        if (source === target) continue;
        const [from, to] = [task[edge] - firstTask(children[source]), next[edge] - firstTask(children[target])];
        all[source].push([target, `${from} ${output[edge]} ${to} ${input[edge]}`]);
      }
      return all;
    };
    return (child) => (found ??= gather())[child];
  }

  private withInnerEdges(children: readonly Child[], edges: Int32Array): { part: Part; edges: Int32Array }[] {
    const { place } = this;
    const { task, next } = this.graph.document.edges;
    const inner: number[][] = [];
    for (const edge of edges) {
      const index = place[task[edge]];
      if (index === place[next[edge]] && typeof children[index] !== "number") (inner[index] ??= []).push(edge);
    }
    const parts: { part: Part; edges: Int32Array }[] = [];
    children.forEach((part, index) => {
      if (typeof part !== "number") parts.push({ part, edges: Int32Array.from(inner[index] ?? []) });
    });
    return parts;
  }

  private countThings(children: readonly Child[], ranks: Int32Array): number {
    const alike = new Map<string, number>();
    let count = 0;
    const { name } = this.graph.document.tasks;
    children.forEach((child, index) => {
      if (typeof child !== "number") count++;
      else {
        const kind = `${ranks[index]} ${name[child]}`;
        alike.set(kind, (alike.get(kind) ?? 0) + 1);
      }
    });
    for (const tasks of alike.values()) count += tasks < ROW_LENGTH ? tasks : Math.ceil(tasks / ROW_LINE);
    return count;
  }
}

/** Return the pieces of a part that cannot be drawn as one box. */
function piecesOf(part: Part): Child[] {
  return part.members.length ? part.members.flat() : part.children;
}

/** Merge many independent calls of one module into one part, so that their tasks can form rows. */
function mergeParallelCalls(children: readonly Child[], ranks: Int32Array): Child[] {
  const alike = new Map<string, Part[]>();
  children.forEach((child, index) => {
    if (typeof child === "number" || child.children.some((each) => typeof each !== "number")) return;
    const key = `${ranks[index]} ${child.path}`;
    const found = alike.get(key);
    if (found) found.push(child);
    else alike.set(key, [child]);
  });
  const merged: Child[] = [];
  const gone = new Set<Child>();
  for (const parts of alike.values()) {
    if (parts.length < ROW_LENGTH) continue;
    const tasks = parts.reduce((sum, part) => sum + part.tasks.length, 0);
    const boxes = Math.min(Math.ceil(tasks / MOST_PARALLEL), Math.floor(parts.length / ROW_LENGTH));
    const length = Math.ceil(parts.length / boxes);
    for (let start = 0; start < parts.length; start += length) {
      const some = parts.slice(start, start + length);
      merged.push(some.length === parts.length ? oneOf(some) : someOf(some));
    }
    for (const part of parts) gone.add(part);
  }
  if (!merged.length) return [...children];
  return [...children.filter((child) => !gone.has(child)), ...merged].sort((a, b) => firstTask(a) - firstTask(b));
}

function oneOf(calls: readonly Part[]): Part {
  const part = new Part(calls[0].path, calls[0].className, calls[0].index);
  part.calls = calls.length;
  part.setTasks(Int32Array.from(calls.flatMap((call) => [...call.tasks])).sort());
  part.children = [...part.tasks];
  return part;
}

function someOf(calls: readonly Part[]): Part {
  const part = oneOf(calls);
  const name = part.path.slice(part.path.lastIndexOf(".") + 1) || part.className;
  part.labels = [`${name} ×${calls.length}`, `calls ${calls[0].index} to ${calls[calls.length - 1].index}`];
  return part;
}
