/** Splitting of boxes with too many children into runs of siblings, each in its own box. */

import type { DeckGraph } from "../model/graph.ts";
import { count } from "../format.ts";
import { linesOf, namesOf, someNames } from "./layers.ts";
import { type Child, Part } from "./module_parts.ts";
import type { Links } from "./longest_paths.ts";

/** Maximum number of things in a box that is not split. */
export const MOST_THINGS = 120;
/** Number of things in a run, or ten, a hundred, ... times as many if there would be too many runs. */
const RUN = 100;
const MOST_RUNS = 30;

/**
 * Return the children in runs that do not depend on each other in a cycle: slices of an order in which every link leads
 * backwards.
 */
export function cutIntoRuns(children: readonly Child[], links: Links, scope: string, graph: DeckGraph): Part[] {
  const sorted = oldestFirst(children.length, links).map((index) => children[index]);
  return cuts(sorted).map((start, index, starts) => run(sorted.slice(start, starts[index + 1]), scope, graph));
}

/** Return the starts of the runs. */
function cuts(children: readonly Child[]): number[] {
  let length = RUN;
  while (children.length / length > MOST_RUNS) length *= 10;
  const starts = callStarts(children);
  if (starts.length) {
    const lead = starts[0] > length / 4; // much comes before the first call and becomes its own run
    const perCall = (children.length - starts[0]) / starts.length;
    let calls = roundNumber(length / perCall);
    while (calls && starts.length / calls > MOST_RUNS) calls *= 10; // 0: a call is longer than a run
    if (calls >= 1 && starts.length > calls) {
      const found = starts.filter((_, call) => call % calls === 0);
      if (lead) found.unshift(0);
      else found[0] = 0;
      return found;
    }
  }
  const rest = children.length % length;
  // a small rest is added to the last run
  const count = Math.floor(children.length / length) + Number(rest > length / 10);
  return Array.from({ length: count }, (_, index) => index * length);
}

/** Return the starts of the calls of the module that is called most often, if any is called more than once. */
function callStarts(children: readonly Child[]): number[] {
  const starts = new Map<string, number[]>();
  children.forEach((child, place) => {
    if (typeof child === "number") return;
    const found = starts.get(child.path);
    if (found) found.push(place);
    else starts.set(child.path, [place]);
  });
  let most: number[] = [];
  for (const found of starts.values()) if (found.length > most.length) most = found;
  return most.length > 1 ? most : [];
}

/** Return the largest of 1, 2, 5, 10, 20, 50, ... that is at most `limit`; 0 below 1. */
function roundNumber(limit: number): number {
  if (limit < 1) return 0;
  const ten = 10 ** Math.floor(Math.log10(limit));
  return ten * (limit >= 5 * ten ? 5 : limit >= 2 * ten ? 2 : 1);
}

function run(children: Child[], scope: string, graph: DeckGraph): Part {
  const part = new Part("", "", 0);
  part.above = scope;
  part.children = children;
  const tasks: number[] = [];
  for (const child of children) {
    if (typeof child === "number") tasks.push(child);
    else {
      child.above = scope;
      for (const task of child.tasks) tasks.push(task);
    }
  }
  part.setTasks(Int32Array.from(tasks));
  part.labels = labelsOf(children, part, graph);
  return part;
}

function labelsOf(children: readonly Child[], part: Part, graph: DeckGraph): [string, string] {
  const parts = children.filter((child) => typeof child !== "number");
  if (parts.length * 4 < children.length || parts.length < 2) {
    return labelsOfTasks(part, graph);
  }
  const calls = callStarts(parts).map((place) => parts[place]);
  if (!calls.length) {
    const classes = new Set(parts.map((part) => part.className));
    const subtitle = classes.size === 1 ? `${parts[0].className} ×${parts.length}` : `${parts.length} modules`;
    return [fromTo(parts.map((part) => part.title)), subtitle];
  }
  const times = new Map<string, number>();
  for (const { title } of parts) times.set(title, (times.get(title) ?? 0) + 1);
  const names = [...times.keys()].filter((title) => (times.get(title) as number) * 2 > calls.length);
  const title = names.length > 3 ? fromTo(names) : names.join(", ");
  return [`${title} ×${calls.length}`, `calls ${calls[0].index} to ${calls[calls.length - 1].index}`];
}

/**
 * Return the names of the modules that created most of the tasks, or else the tasks' names; and their source lines or
 * their number.
 */
function labelsOfTasks({ above, tasks }: Part, graph: DeckGraph): [string, string] {
  const said = count(tasks.length, "task");
  const all = [...tasks];
  const depth = above ? above.split(".").length : 0;
  const paths = all.map((task) => graph.module(task).split(".").slice(depth)).filter(([name]) => name);
  if (paths.length * 2 > all.length) {
    let shared = 0; // number of names that all paths start with
    while (paths[0].length > shared && paths.every((path) => path[shared] === paths[0][shared])) shared++;
    return [shared ? paths[0].slice(0, shared).join(".") : someNames(paths.map(([name]) => name)), said];
  }
  const lines = linesOf(all, graph);
  return [namesOf(all, graph), lines.includes(":") ? lines : said];
}

function fromTo(names: readonly string[]): string {
  return `${names[0]} – ${names[names.length - 1]}`;
}

/**
 * Return an order in which every link leads to an earlier item: the order of creation, with each item after all its
 * targets.
 */
function oldestFirst(count: number, { sources, targets }: Links): number[] {
  const needed: number[][] = [];
  for (let link = 0; link < sources.length; link++) (needed[sources[link]] ??= []).push(targets[link]);
  const order: number[] = [];
  const visited = new Uint8Array(count);
  for (let item = 0; item < count; item++) {
    const stack = visited[item] ? [] : [item];
    while (stack.length) {
      const top = stack[stack.length - 1];
      visited[top] = 1;
      const next = needed[top]?.pop();
      if (next === undefined) order.push(stack.pop() as number);
      else if (!visited[next]) stack.push(next);
    }
  }
  return order;
}
