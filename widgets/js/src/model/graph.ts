/** The graph, with arrays precomputed for the views. */

import { type DeckDocument, NONE } from "./document.ts";

/** Prefix of the names of C++ nodes. */
const NAMESPACE = "torch::autograd::";

/** Rows of a ragged table: row i is `values` from `starts[i]` to `starts[i + 1]`. */
export interface Ragged {
  starts: Int32Array;
  values: Int32Array;
}

export class DeckGraph {
  readonly count: number;
  /** Indices of each task's outgoing edges, by output, and of its incoming edges. */
  readonly outEdges: Ragged;
  readonly inEdges: Ragged;
  readonly leaf: Uint8Array;
  /** Number of gradients each task waits for: one per incoming edge and one per root. */
  readonly waits: Int32Array;
  /** Bytes of each task's complete input buffer. */
  readonly bufferBytes: Float64Array;
  readonly titles: string[];

  constructor(readonly document: DeckDocument) {
    const { tasks, edges, roots, texts, metas, forms } = document;
    this.count = tasks.name.length;
    this.outEdges = grouped(this.count, edges.task);
    this.inEdges = grouped(this.count, edges.next);
    const leafKind = texts.indexOf("accumulate_grad");
    this.leaf = Uint8Array.from(tasks.kind, (kind) => (kind === leafKind ? 1 : 0));
    this.waits = new Int32Array(this.count);
    for (const next of edges.next) this.waits[next]++;
    for (const [task] of roots) this.waits[task]++;
    const formBytes = forms.map((form) => form.reduce((sum, meta) => sum + (metas[meta].bytes ?? 0), 0));
    this.bufferBytes = Float64Array.from(tasks.takes, (form) => formBytes[form] ?? 0);
    const shorts = texts.map(shortName);
    this.titles = Array.from(tasks.name, (name, task) => {
      if (!this.leaf[task]) return shorts[name];
      const parameter = this.parameter(task);
      return parameter ? parameter.slice(parameter.lastIndexOf(".") + 1) : "leaf";
    });
  }

  /** Return a task's name: `AddmmBackward0`; `AccumulateGrad`. */
  name(task: number): string {
    return bareName(this.document.texts[this.document.tasks.name[task]]);
  }

  parameter(task: number): string {
    return this.text(this.document.tasks.parameter[task]);
  }

  /**
   * Return the path of the innermost module whose call created the task's node; "" for the model itself, or if unknown.
   */
  module(task: number): string {
    const call = this.document.tasks.call[task];
    return call === NONE ? "" : this.text(this.document.calls.path[call]);
  }

  moduleClass(task: number): string {
    const call = this.document.tasks.call[task];
    return call === NONE ? "" : this.text(this.document.calls.class[call]);
  }

  /** Return the task's source line, such as `model.py:120`, or "". */
  line(task: number): string {
    const line = this.document.tasks.line[task];
    return line === NONE ? "" : this.document.lines[line].short;
  }

  sourceLine(task: number): DeckDocument["lines"][number] | null {
    return this.document.lines[this.document.tasks.line[task]] ?? null;
  }

  /** Return the location of a task: its parameter, its module or the model; "" if no module was recorded. */
  place(task: number): string {
    const model = this.document.tasks.call[task] === NONE ? "" : this.document.title;
    return this.parameter(task) || this.module(task) || model;
  }

  text(index: number): string {
    return index === NONE ? "" : this.document.texts[index];
  }

  /** Return all tasks upstream (`up`) or downstream of a task, without the task itself. */
  reach(task: number, up: boolean): Uint8Array {
    const { task: from, next: to } = this.document.edges;
    const { starts, values } = up ? this.inEdges : this.outEdges;
    const ends = up ? from : to;
    const found = new Uint8Array(this.count);
    const stack = [task];
    while (stack.length) {
      const current = stack.pop() as number;
      for (let at = starts[current]; at < starts[current + 1]; at++) {
        const other = ends[values[at]];
        if (!found[other]) {
          found[other] = 1;
          stack.push(other);
        }
      }
    }
    return found;
  }
}

/** Return the name without its namespace: `CopySlices` for `torch::autograd::CopySlices`. */
export function bareName(name: string): string {
  return name.startsWith(NAMESPACE) ? name.slice(NAMESPACE.length) : name;
}

/**
 * Return the short name: `Addmm` for `AddmmBackward0`, `CopySlices` for `torch::autograd::CopySlices`, as
 * inspector/graph/kinds.py does.
 */
export function shortName(name: string): string {
  let end = name.length;
  while (end && name[end - 1] >= "0" && name[end - 1] <= "9") end--;
  const last = name.slice(name.lastIndexOf(":") + 1, end);
  return last.replace(/Backward$/, "") || last || name;
}

function grouped(count: number, keys: readonly number[]): Ragged {
  const starts = new Int32Array(count + 1);
  for (const key of keys) starts[key + 1]++;
  for (let row = 0; row < count; row++) starts[row + 1] += starts[row];
  const next = starts.slice(0, count);
  const values = new Int32Array(keys.length);
  keys.forEach((key, edge) => {
    values[next[key]++] = edge;
  });
  return { starts, values };
}
