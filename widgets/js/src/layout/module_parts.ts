/** The module calls of a graph with the tasks that their forward made: boxes in the making. */

import { NONE } from "../model/document.ts";
import type { DeckGraph } from "../model/graph.ts";

/** Nobody reads boxes nested deeper; deeper calls are drawn as part of the one around them. */
const DEEPEST = 100;

export type Child = Part | number;

/** Module calls, or a run of siblings, that may become one box. */
export class Part {
  /** Oldest first. */
  children: Child[] = [];
  /** All tasks in it, but not those of parameters. */
  tasks: Int32Array = new Int32Array(0);
  /** The task that was created first. */
  first = 0;
  /** How many parallel calls it stands for. */
  calls = 1;
  /** Whether its module is called more than once. */
  again = false;
  /** The title and subtitle of what is no single call: a run of siblings, or some of very many parallel calls. */
  labels: readonly [title: string, subtitle: string] | null = null;
  /** The path of the box around it. */
  above = "";
  /** Whether it is a chain of views, in no module of their own. */
  isViews = false;
  /** Equal runs of siblings that it is drawn for, the first created first; empty where it is none. */
  members: Child[][] = [];
  /** The same number for parts of the same shape; negative for what is like nothing else. */
  shape = -1;

  constructor(
    readonly path: string,
    readonly className: string,
    /** Counts the calls of the same module. */
    readonly index: number,
  ) {}

  setTasks(tasks: Int32Array): void {
    this.tasks = tasks;
    this.first = tasks.reduce((first, task) => Math.min(first, task), Infinity);
  }

  /** Its path as seen from the box around it, or its class. */
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

/** What no module call holds, oldest first; all calls, with the one around each, and by task the one that it is in. */
export interface TopChildren {
  children: Child[];
  parts: readonly Part[];
  around: Int32Array;
  partOf: Int32Array;
}

/** The model's own call is left out where it is the only outermost one. */
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

/** By call the call around it, and the call in whose box it is drawn: itself, if it is not too deep. */
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

/** Gives every part its tasks: slices of one array in which the tasks of each part lie side by side. */
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
