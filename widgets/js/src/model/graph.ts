/** The graph with what the views ask of it, precomputed as typed arrays. */

import { type DeckDocument, NONE } from "./document.ts";

/** What C++ puts before the names of its own nodes. */
const NAMESPACE = "torch::autograd::";

/** Rows of a ragged table: row i is `values` from `starts[i]` to `starts[i + 1]`. */
export interface Ragged {
  starts: Int32Array;
  values: Int32Array;
}

export class DeckGraph {
  readonly count: number;
  /** Edge numbers that leave each task, by output, and that come to it. */
  readonly outEdges: Ragged;
  readonly inEdges: Ragged;
  readonly leaf: Uint8Array;
  /** How many gradients each task waits for: one per edge and one per root. */
  readonly waits: Int32Array;
  /** The bytes of a task's full input buffer. */
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

  /** `AddmmBackward0`; `AccumulateGrad`. */
  name(task: number): string {
    return bareName(this.document.texts[this.document.tasks.name[task]]);
  }

  parameter(task: number): string {
    return this.text(this.document.tasks.parameter[task]);
  }

  /** The path of the innermost module whose call made the task's node; "" where there is none, or the model itself. */
  module(task: number): string {
    const call = this.document.tasks.call[task];
    return call === NONE ? "" : this.text(this.document.calls.path[call]);
  }

  moduleClass(task: number): string {
    const call = this.document.tasks.call[task];
    return call === NONE ? "" : this.text(this.document.calls.class[call]);
  }

  /** `model.py:120`, or "". */
  line(task: number): string {
    const line = this.document.tasks.line[task];
    return line === NONE ? "" : this.document.lines[line].short;
  }

  sourceLine(task: number): DeckDocument["lines"][number] | null {
    return this.document.lines[this.document.tasks.line[task]] ?? null;
  }

  /** Where a task is, for people: its parameter, its module, or the model; "" where no capture saw a module. */
  place(task: number): string {
    const model = this.document.tasks.call[task] === NONE ? "" : this.document.title;
    return this.parameter(task) || this.module(task) || model;
  }

  text(index: number): string {
    return index === NONE ? "" : this.document.texts[index];
  }

  /** All tasks that a task's gradient comes from (`up`), or goes to, itself left out. */
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

/** `CopySlices` of `torch::autograd::CopySlices`. */
export function bareName(name: string): string {
  return name.startsWith(NAMESPACE) ? name.slice(NAMESPACE.length) : name;
}

/** `Addmm` of `AddmmBackward0`, `CopySlices` of `torch::autograd::CopySlices`, as inspector/graph/kinds.py has it. */
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
