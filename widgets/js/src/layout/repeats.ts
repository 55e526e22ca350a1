/**
 * Equal blocks: module calls of the same shape, and runs of them among siblings, as in
 * inspector/graph/paths_and_repeats.py.
 */

import { type DeckDocument, NONE } from "../model/document.ts";
import type { DeckGraph } from "../model/graph.ts";
import { type Child, firstTask, Part } from "./module_parts.ts";

/** Minimum number of tasks hidden by drawing a run only once. */
const LEAST_HIDDEN = 8;
const LONGEST_PERIOD = 32;
/** Maximum period of runs of tasks without modules. It is larger because a block has more tasks than modules. */
const LONGEST_LOOSE_PERIOD = 128;

/** Function for a child's edges to siblings: the sibling's index, and a key of both ends. */
export type Joined = (child: number) => readonly (readonly [target: number, ends: string])[];

/** Numbering of texts: equal texts have equal numbers. */
class Numbers {
  private readonly known = new Map<string, number>();

  of(text: string): number {
    let number = this.known.get(text);
    if (number === undefined) this.known.set(text, (number = this.known.size));
    return number;
  }
}

/**
 * Assign equal numbers to parts of equal shape, and return such numbers for the tasks. The shape consists of the class,
 * the tasks, the shapes of gradients, inner edges, and the outputs that lead to parameters. `callOf` is the innermost
 * part of each task.
 */
export function findShapes(
  graph: DeckGraph,
  pills: Uint8Array,
  parts: readonly Part[],
  around: Int32Array,
  callOf: Int32Array,
): Int32Array {
  const { tasks, edges } = graph.document;
  const numbers = new Numbers();
  const outputs: string[] = new Array(graph.count).fill("");
  const depths = new Int32Array(parts.length);
  around.forEach((above, part) => {
    depths[part] = above === NONE ? 0 : depths[above] + 1;
  });
  const inner: string[] = new Array(parts.length).fill("");
  edges.task.forEach((task, edge) => {
    const next = edges.next[edge];
    if (pills[next]) outputs[task] += `${edges.output[edge]},`;
    else {
      const call = commonCall(callOf[task], callOf[next], around, depths);
      if (call === NONE) return;
      const { first } = parts[call];
      inner[call] += `${task - first} ${edges.output[edge]} ${next - first} ${edges.input[edge]},`;
    }
  });
  const shapes = Int32Array.from(outputs, (used, task) => numbers.of(`${tasks.name[task]} ${tasks.takes[task]} ${used}`));
  for (let call = parts.length - 1; call >= 0; call--) {
    const part = parts[call];
    if (!part.children.length) continue;
    const content = part.children.map((child) => {
      return `${firstTask(child) - part.first} ${typeof child === "number" ? shapes[child] : child.shape}`;
    });
    part.shape = numbers.of(`${part.className}|${content}|${inner[call]}`);
  }
  return shapes;
}

/** Return the innermost call around both. */
function commonCall(one: number, other: number, around: Int32Array, depths: Int32Array): number {
  while (one !== other && one !== NONE && other !== NONE) {
    const [depth, otherDepth] = [depths[one], depths[other]];
    if (depth >= otherDepth) one = around[one];
    if (otherDepth >= depth) other = around[other];
  }
  return one === other ? one : NONE;
}

/** Function for the source line of a child's first task; null if unknown. */
export type LineOf = (child: Child) => DeckDocument["lines"][number] | null;

/**
 * Combine each run of equal siblings, with a period of one or more, into one part. Each must contain a module. With
 * `lineOf`, runs of tasks alone are also folded, starting where the forward jumped back to an earlier line.
 */
export function foldRuns(children: readonly Child[], shapes: Int32Array, joined: Joined, lineOf?: LineOf): Child[] {
  const shape = children.map((child, place) => {
    const known = typeof child === "number" ? shapes[child] : child.shape;
    return known < 0 ? -1 - place : known;
  });
  const partFrom = new Int32Array(children.length);
  let next = children.length;
  for (let place = children.length - 1; place >= 0; place--) {
    if (typeof children[place] !== "number") next = place;
    partFrom[place] = next;
  }
  const runs = new Runs(children, shape, joined);
  const folded: Child[] = [];
  for (let start = 0; start < children.length; ) {
    const first = lineOf ? start : partFrom[start];
    let [period, times] = runs.longest(start, first, lineOf ? LONGEST_LOOSE_PERIOD : LONGEST_PERIOD);
    if (times === 1) folded.push(children[start++]);
    else {
      for (let skip = lineOf ? goesBack(children, start, period, lineOf) : 0; skip; skip--) folded.push(children[start++]);
      times = runs.times(start, period);
      const members = Array.from({ length: times }, (_, member) => {
        return children.slice(start + member * period, start + (member + 1) * period);
      });
      folded.push(runOf(members));
      start += period * times;
    }
  }
  return folded;
}

/** The runs of equal members among siblings. Ask for starts in ascending order. */
class Runs {
  /** Number of tasks before each child. */
  private readonly tasksBefore: Int32Array;
  /**
   * For each period, a place up to which children have the shapes of those one period later. Because of it, each child
   * is compared once per period and not once per start.
   */
  private readonly differs = new Int32Array(LONGEST_LOOSE_PERIOD + 1);

  constructor(
    private readonly children: readonly Child[],
    private readonly shape: readonly number[],
    private readonly joined: Joined,
  ) {
    this.tasksBefore = new Int32Array(children.length + 1);
    children.forEach((child, place) => {
      this.tasksBefore[place + 1] = this.tasksBefore[place] + (typeof child === "number" ? 1 : child.tasks.length);
    });
  }

  /**
   * Return the period and the number of members of the longest run that starts at `start`; [1, 1] if none is worth
   * folding.
   */
  longest(start: number, first: number, longestPeriod: number): [period: number, times: number] {
    const { children, shape, tasksBefore } = this;
    let best: [number, number] = [1, 1];
    const most = Math.min(longestPeriod, Math.floor((children.length - start) / 2));
    for (let period = first - start + 1; period <= most; period++) {
      if (shape[start + period] !== shape[start]) continue;
      if (start + best[0] * best[1] + period > children.length) break; // no longer run is possible
      const times = this.times(start, period);
      const tasks = tasksBefore[start + period] - tasksBefore[start];
      if ((times - 1) * tasks >= LEAST_HIDDEN && period * times > best[0] * best[1]) best = [period, times];
    }
    return best;
  }

  /** Return the number of equal members from `start` on: 1 if the next one differs. */
  times(start: number, period: number): number {
    const { shape, differs } = this;
    let end = Math.max(differs[period], start);
    while (end + period < shape.length && shape[end] === shape[end + period]) end++;
    differs[period] = end;
    const most = 1 + Math.floor((end - start) / period);
    let times = 1;
    while (times < most && this.haveEqualEdges(start, start + period * times, period)) times++;
    return times;
  }

  /** Return whether the members starting at `one` and `other`, of equal shapes, have equal inner edges. */
  private haveEqualEdges(one: number, other: number, period: number): boolean {
    if (period === 1) return true;
    const { children, joined } = this;
    const apart = firstTask(children[other]) - firstTask(children[one]);
    for (let place = 0; place < period; place++) {
      if (firstTask(children[other + place]) - firstTask(children[one + place]) !== apart) return false;
      const [edges, others] = [joined(one + place), joined(other + place)];
      for (let a = 0, b = 0; ; a++, b++) {
        while (a < edges.length && (edges[a][0] < one || edges[a][0] >= one + period)) a++;
        while (b < others.length && (others[b][0] < other || others[b][0] >= other + period)) b++;
        if (a >= edges.length || b >= others.length) {
          if (a < edges.length || b < others.length) return false;
          break;
        }
        if (edges[a][0] - one !== others[b][0] - other || edges[a][1] !== others[b][1]) return false;
      }
    }
    return true;
  }
}

/**
 * Return after how many children of a period the forward jumped back to an earlier line; 0 if never or more than once.
 */
function goesBack(children: readonly Child[], start: number, period: number, lineOf: LineOf): number {
  const lines = children.slice(start, start + period).map(lineOf);
  const back = lines.flatMap((line, place) => {
    const before = lines.at(place - 1);
    const isBack = line && before && line.file === before.file && line.function === before.function && line.line < before.line;
    return isBack ? [place] : [];
  });
  return back.length === 1 && start + (back[0] + 2 * period) <= children.length ? back[0] : 0;
}

/** Return the part for a run. It draws the member created last, which a backward reaches first. */
function runOf(members: Child[][]): Part {
  const shown = members[members.length - 1];
  const parts = shown.filter((child) => typeof child !== "number");
  const { path, className, index } = parts[0] ?? new Part("", "", 0);
  const above = shown.length > 1 ? path.slice(0, Math.max(0, path.lastIndexOf("."))) : path;
  const part = new Part(above, className, index);
  part.members = members;
  part.setTasks(Int32Array.from(members.flatMap((member) => tasksOf(member))));
  return part;
}

export function tasksOf(children: readonly Child[]): number[] {
  return children.flatMap((child) => (typeof child === "number" ? [child] : [...child.tasks]));
}
