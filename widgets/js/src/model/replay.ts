/** Replay of one schedule: the state of each task and the contents of the ready queue at any position. */

import type { Schedule } from "./document.ts";
import type { DeckGraph } from "./graph.ts";
import { nth } from "../format.ts";

export type TaskState = "waiting" | "ready" | "running" | "done";

/**
 * State of a task on screen. "planned": done at the shown position, which the live session has not reached yet.
 * "failed": the task at which the session ended with an error.
 */
export type ShownState = TaskState | "planned" | "failed";

/** Place of tasks that never run. */
export const NEVER = 0x7fffffff;

/**
 * A schedule's states by position. At position t, t tasks have run and the task at place t is next ("running"). At
 * position `length` all have run.
 */
export class Replay {
  readonly length: number;
  /** Place of each task in the order; NEVER if it does not run. */
  readonly place: Int32Array;
  /** First position at which each task is ready. */
  readonly readyAt: Int32Array;
  /** Rank of each task in the order of arrival. */
  readonly arrival: Int32Array;
  /** Number of ready tasks at each position, including the running one. */
  readonly queueLengths: Int32Array;
  private readonly byHand: Set<number>;
  /** Batch in which each task ran. */
  private readonly batches = new Map<number, number[]>();

  constructor(
    readonly graph: DeckGraph,
    readonly schedule: Schedule,
  ) {
    const { order } = schedule;
    const { edges, roots } = graph.document;
    this.length = order.length;
    this.place = new Int32Array(graph.count).fill(NEVER);
    order.forEach((task, place) => {
      this.place[task] = place;
    });
    this.readyAt = new Int32Array(graph.count).fill(NEVER);
    this.arrival = new Int32Array(graph.count).fill(-1);
    this.byHand = new Set(schedule.by_hand);
    for (const batch of schedule.batches ?? []) for (const task of batch) this.batches.set(task, batch);
    const missing = graph.waits.slice();
    let arrived = 0;
    const arrive = (task: number, position: number) => {
      if (--missing[task] || this.place[task] === NEVER) return;
      this.readyAt[task] = position;
      this.arrival[task] = arrived++;
    };
    for (const [task] of roots) arrive(task, 0);
    this.queueLengths = new Int32Array(this.length + 1); // 0 at the end
    for (let place = 0; place < this.length; place++) {
      this.queueLengths[place] = arrived - place;
      const task = order[place];
      for (let at = graph.outEdges.starts[task]; at < graph.outEdges.starts[task + 1]; at++) {
        arrive(edges.next[graph.outEdges.values[at]], place + 1);
      }
    }
  }

  /** Return the task at this position; -1 at the end. */
  running(t: number): number {
    return t < this.length ? this.schedule.order[t] : -1;
  }

  state(task: number, t: number): TaskState {
    const place = this.place[task];
    if (place < t) return "done";
    if (place === t && t < this.length) return "running";
    return this.readyAt[task] <= t ? "ready" : "waiting";
  }

  /** Return a task's state at a position if only `ran` tasks have actually run. */
  shownState(task: number, t: number, ran: number): ShownState {
    const state = this.state(task, t);
    return state === "done" && this.place[task] >= ran ? "planned" : state;
  }

  /**
   * Return the first `most` ready tasks in the order in which they will run, without the running one. With constant
   * keys the queue returns them in this order unless further tasks arrive.
   */
  queue(t: number, most = Infinity): number[] {
    const { order } = this.schedule;
    const count = Math.min(most, this.queueLengths[t] - 1);
    const found: number[] = [];
    for (let place = t + 1; found.length < count; place++) {
      if (this.readyAt[order[place]] <= t) found.push(order[place]);
    }
    return found;
  }

  /** Return how many of a task's gradients have arrived. */
  arrivedInputs(task: number, t: number): number {
    const { starts, values } = this.graph.inEdges;
    const from = this.graph.document.edges.task;
    let count = 0;
    for (let at = starts[task]; at < starts[task + 1]; at++) if (this.place[from[values[at]]] < t) count++;
    for (const [root] of this.graph.document.roots) if (root === task) count++;
    return count;
  }

  /** Return the task's place in this run, `53rd`; "" if it does not run. */
  nth(task: number): string {
    return this.place[task] === NEVER ? "" : nth(this.place[task] + 1);
  }

  /** Return the name and place: `Addmm, 53rd`. */
  named(task: number): string {
    return [this.graph.titles[task], this.nth(task)].filter(Boolean).join(", ");
  }

  /** Return the name, module path and place, always in this order: `AddmmBackward0, blocks.1.f2, 53rd`. */
  inWords(task: number): string {
    return [whatAndWhere(this.graph, task), this.nth(task)].filter(Boolean).join(", ");
  }

  /** Return a sentence that says why the task at this position was picked from `count` ready tasks. */
  reason(t: number, count = this.queueLengths[t]): string {
    const task = this.running(t);
    if (task < 0) return "the queue is empty";
    const { graph, schedule } = this;
    const batch = this.batches.get(task);
    const others = batch ? batch.length - 1 : 0;
    const together = batch ? `, as one with ${others} other task${others === 1 ? "" : "s"}` : "";
    if (batch && batch[0] !== task) return `${together.slice(2)}, from the ${this.nth(batch[0])} on`;
    if (this.byHand.has(task)) return `chosen by hand out of ${count} ready${together}`;
    if (batch) return `1 of ${count} ready${together}`;
    if (count === 1) return "the only ready task";
    if (schedule.policy === "heap") {
      return graph.leaf[task]
        ? `a leaf goes first: ${graph.titles[task]}, 1 of ${count} ready`
        : `latest created of ${count} ready`;
    }
    const since = this.readyAt[task] ? `since the ${nth(this.readyAt[task])} ran` : "from the start";
    if (schedule.policy === "bfs") return `first in: ready ${since}, 1 of ${count} ready`;
    if (schedule.policy === "dfs") return `last in: ready ${since}, 1 of ${count} ready`;
    return `first of ${count} under ${schedule.policy}: ${schedule.title}`;
  }
}

/** Return the name and module path, `AddmmBackward0, blocks.1.f2`; for a leaf, the parameter. */
export function whatAndWhere(graph: DeckGraph, task: number): string {
  return graph.parameter(task) || [graph.name(task), graph.module(task)].filter(Boolean).join(", ");
}
