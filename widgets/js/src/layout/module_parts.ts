/** Parts, from which boxes are made: the module calls of a graph with the tasks created by their forward. */

import { NONE } from "../model/document.ts";
import type { DeckGraph } from "../model/graph.ts";

/** Maximum depth of boxes; deeper calls are drawn as part of the enclosing one. */
const DEEPEST = 100;

export type Child = Part | number;

/** Module calls, or a run of siblings, that may become one box. */
export class Part {
  /** Children, oldest first. */
  children: Child[] = [];
  /** All tasks in it except those of parameters. */
  tasks: Int32Array = new Int32Array(0);
  /** The task created first. */
  first = 0;
  /** Number of parallel calls it represents. */
  calls = 1;
  /** True if its module is called more than once. */
  again = false;
  /** Title and subtitle of a run of siblings, or of some of very many parallel calls; null for a single call. */
  labels: readonly [title: string, subtitle: string] | null = null;
  /** Path of the enclosing box. */
  above = "";
  /** True if it is a chain of views without a module. */
  isViews = false;
  /** Equal runs of siblings that it represents, the first created first; empty for other parts. */
  members: Child[][] = [];
  /** Shape number, equal for parts of equal shape; negative if it is unique. */
  shape = -1;

  constructor(
    readonly path: string,
    readonly className: string,
    /** Counter of the calls of the same module. */
    readonly index: number,
  ) {}

  setTasks(tasks: Int32Array): void {
    this.tasks = tasks;
    this.first = tasks.reduce((first, task) => Math.min(first, task), Infinity);
  }

  /** Path relative to the enclosing box, or the class. */
  get name(): string {
    const below =
      this.above && this.path.startsWith(`${this.above}.`) ? this.path.slice(this.above.length + 1) : this.path;
    return below || this.className;
  }

  get title(): string {
    return this.labels ? this.labels[0] : this.name;
  }

  get subtitle(): string {
    if (this.labels) return this.labels[1];
    const className = this.name === this.className ? "" : this.className;
    const which = this.calls > 1 ? `${this.calls} calls` : this.again ? `call ${this.index}` : "";
    return [className, which].filter(Boolean).join(", ");
  }
}

export function firstTask(child: Child): number {
  return typeof child === "number" ? child : child.first;
}

/** Tasks outside of all module calls, oldest first; all calls with their enclosing call; and the call of each task. */
export interface TopChildren {
  children: Child[];
  parts: readonly Part[];
  around: Int32Array;
  partOf: Int32Array;
}

/** Return the outermost children. The model's own call is omitted if it is the only outermost one. */
export function topChildren(graph: DeckGraph, pills: Uint8Array): TopChildren {
  const { call: callOf } = graph.document.tasks;
  const { path, class: className, parent, index } = graph.document.calls;
  const parts = Array.from(path, (text, call) => new Part(graph.text(text), graph.text(className[call]), index[call]));
  const again = new Set(path.filter((_, call) => index[call] > 0));
  parts.forEach((part, call) => {
    part.again = again.has(path[call]);
  });
  const { around, shownAs } = shallowCalls(parent);
  const loose: Child[] = [];
  for (let task = 0; task < graph.count; task++) {
    if (pills[task]) continue;
    if (callOf[task] === NONE) loose.push(task);
    else parts[shownAs[callOf[task]]].children.push(task);
  }
  const roots: Part[] = [];
  for (let call = parts.length - 1; call >= 0; call--) {
    const part = parts[call];
    if (!part.children.length) continue;
    part.children.sort((a, b) => firstTask(a) - firstTask(b));
    part.first = firstTask(part.children[0]);
    if (around[call] === NONE) roots.push(part);
    else parts[around[call]].children.push(part);
  }
  gatherTasks(roots, graph.count);
  const partOf = Int32Array.from(callOf, (call) => (call === NONE ? NONE : shownAs[call]));
  const [only] = roots;
  const children = roots.length === 1 && only.path === "" ? only.children : roots;
  const sorted = [...loose, ...children].sort((a, b) => firstTask(a) - firstTask(b));
  return { children: sorted, parts, around, partOf };
}

/** Return each call's enclosing call, and the call in whose box it is drawn: itself unless it is too deep. */
function shallowCalls(parent: readonly number[]): { around: Int32Array; shownAs: Int32Array } {
  const depth = new Int32Array(parent.length);
  const around = new Int32Array(parent.length).fill(NONE);
  const shownAs = new Int32Array(parent.length);
  parent.forEach((above, call) => {
    shownAs[call] = call;
    if (!(above >= 0 && above < call)) return;
    if (depth[above] === DEEPEST) {
      depth[call] = DEEPEST;
      shownAs[call] = shownAs[above];
    } else {
      depth[call] = depth[above] + 1;
      around[call] = above;
    }
  });
  return { around, shownAs };
}

/** Assign the tasks to parts. The tasks of each part are a slice of one common array. */
function gatherTasks(roots: readonly Part[], count: number): void {
  const tasks = new Int32Array(count);
  let length = 0;
  const stack: { part: Part; next: number; start: number }[] = [];
  for (const root of roots) {
    stack.push({ part: root, next: 0, start: length });
    while (stack.length) {
      const top = stack[stack.length - 1];
      if (top.next < top.part.children.length) {
        const child = top.part.children[top.next++];
        if (typeof child === "number") tasks[length++] = child;
        else stack.push({ part: child, next: 0, start: length });
      } else {
        top.part.tasks = tasks.subarray(top.start, length);
        stack.pop();
      }
    }
  }
}
