/** Cuts what one box would hold too much of into runs of siblings, each a box of its own. */

import type { DeckGraph } from "../model/graph.ts";
import { count } from "../format.ts";
import { linesOf, namesOf, someNames } from "./layers.ts";
import { type Child, Part } from "./module_parts.ts";
import type { Links } from "./longest_paths.ts";

/** A box that would hold more things than this is cut into runs. */
export const MOST_THINGS = 120;
/** So many things a run holds, or ten, a hundred, ... times as many where that makes too many runs. */
const RUN = 100;
const MOST_RUNS = 30;

/** The children in runs that don't depend on each other in a circle: stretches of an order in which none does. */
export function cutIntoRuns(children: readonly Child[], links: Links, scope: string, graph: DeckGraph): Part[] {
  const sorted = oldestFirst(children.length, links).map((index) => children[index]);
  return cuts(sorted).map((start, index, starts) => run(sorted.slice(start, starts[index + 1]), scope, graph));
}

/** The places at which runs begin. */
function cuts(children: readonly Child[]): number[] {
  let length = RUN;
  while (children.length / length > MOST_RUNS) length *= 10;
  const starts = callStarts(children);
  if (starts.length) {
    const lead = starts[0] > length / 4; // much comes before the first call: a run of its own
    const perCall = (children.length - starts[0]) / starts.length;
    let calls = roundNumber(length / perCall);
    while (starts.length / calls > MOST_RUNS) calls *= 10;
    if (calls >= 1 && starts.length > calls) {
      const found = starts.filter((_, call) => call % calls === 0);
      if (lead) found.unshift(0);
      else found[0] = 0;
      return found;
    }
  }
  const rest = children.length % length;
  const count = Math.floor(children.length / length) + Number(rest > length / 10); // a small rest is with the last run
  return Array.from({ length: count }, (_, index) => index * length);
}

/** Where the calls of the module begin that is called most often, if any is called again. */
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

/** The largest of 1, 2, 5, 10, 20, 50, ... that is not above `limit`; 0 below 1. */
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

/** The modules that made most of them, else what they are, and the lines that made them or how many there are. */
function labelsOfTasks({ above, tasks }: Part, graph: DeckGraph): [string, string] {
  const said = count(tasks.length, "task");
  const all = [...tasks];
  const depth = above ? above.split(".").length : 0;
  const paths = all.map((task) => graph.module(task).split(".").slice(depth)).filter(([name]) => name);
  if (paths.length * 2 > all.length) {
    let shared = 0; // so many names begin all paths
    while (paths[0].length > shared && paths.every((path) => path[shared] === paths[0][shared])) shared++;
    return [shared ? paths[0].slice(0, shared).join(".") : someNames(paths.map(([name]) => name)), said];
  }
  const lines = linesOf(all, graph);
  return [namesOf(all, graph), lines.includes(":") ? lines : said];
}

function fromTo(names: readonly string[]): string {
  return `${names[0]} – ${names[names.length - 1]}`;
}

/** An order in which every link leads to an earlier one: that of creation, but each item after all that it leads to. */
function oldestFirst(count: number, { sources, targets }: Links): number[] {
  const needed: number[][] = [];
  for (let link = 0; link < sources.length; link++) (needed[sources[link]] ??= []).push(targets[link]);
  const order: number[] = [];
  const met = new Uint8Array(count);
  for (let item = 0; item < count; item++) {
    const stack = met[item] ? [] : [item];
    while (stack.length) {
      const top = stack[stack.length - 1];
      met[top] = 1;
      const next = needed[top]?.pop();
      if (next === undefined) order.push(stack.pop() as number);
      else if (!met[next]) stack.push(next);
    }
  }
  return order;
}
