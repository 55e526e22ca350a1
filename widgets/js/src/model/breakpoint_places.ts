/** Places for breakpoints: the names that engine/schedule/find_tasks.py accepts. */

import { NONE } from "./document.ts";
import { type DeckGraph, shortName } from "./graph.ts";

/** Meanings of names, in the order of the suggestions. */
const OFFERED = ["kind", "module", "line", "parameter"] as const;

export interface Place {
  /** Text to type. */
  where: string;
  what: (typeof OFFERED)[number];
  /** Number of tasks that it matches. */
  tasks: number;
}

const known = new WeakMap<DeckGraph, Place[]>();

/** Return all names of a graph. A name gets a prefix if an earlier meaning would match it first. */
function placesOf(graph: DeckGraph): Place[] {
  let places = known.get(graph);
  if (places) return places;
  // The keys are in the order in which Python tries the meanings of a name.
  const found = { line: new Map(), kind: new Map(), module: new Map(), parameter: new Map() };
  const add = (names: Map<string, number>, name: string) => name && names.set(name, (names.get(name) ?? 0) + 1);
  const paths = new Map<number, Set<string>>();
  for (let task = 0; task < graph.count; task++) {
    const call = graph.document.tasks.call[task];
    if (!paths.has(call)) paths.set(call, pathsOf(graph, call));
    add(found.line, graph.line(task));
    add(found.kind, shortName(graph.name(task)));
    for (const path of paths.get(call)!) add(found.module, path);
    add(found.parameter, graph.parameter(task));
  }
  const seen = new Set<string>();
  places = Object.entries(found).flatMap(([what, names]) =>
    [...(names as Map<string, number>)].map(([name, tasks]) => {
      const where = seen.has(name) ? `${what === "parameter" ? "grad" : what}:${name}` : name;
      seen.add(name);
      return { where, what: what as Place["what"], tasks };
    }),
  );
  places.sort((one, other) => OFFERED.indexOf(one.what) - OFFERED.indexOf(other.what));
  known.set(graph, places);
  return places;
}

/**
 * Return the paths that match a call: those of its module and of the modules around it, and every prefix that ends at a
 * dot.
 */
function pathsOf({ document: { calls, texts } }: DeckGraph, call: number): Set<string> {
  const found = new Set<string>();
  for (let at = call; at !== NONE; at = calls.parent[at]) {
    for (let path = texts[calls.path[at]]; path; path = path.slice(0, Math.max(0, path.lastIndexOf(".")))) found.add(path);
  }
  return found;
}

/** Return the first `most` places whose name contains these words; without words, the places of `task` come first. */
export function suggestPlaces(graph: DeckGraph, words: string, task: number, most: number): Place[] {
  const typed = words.trim().toLowerCase();
  const call = task < 0 ? NONE : graph.document.tasks.call[task];
  const own = task < 0 ? [] : [graph.line(task), shortName(graph.name(task)), graph.parameter(task), graph.module(task)];
  const near = new Set(typed ? [] : [...own, ...pathsOf(graph, call)]);
  const ranks: Place[][] = [[], [], []];
  for (const place of placesOf(graph)) {
    const name = place.where.toLowerCase();
    if (near.has(place.where) || (typed && name.startsWith(typed))) ranks[0].push(place);
    else if (typed && name.split(/[.:]/).some((part) => part.startsWith(typed))) ranks[1].push(place);
    else if (name.includes(typed)) ranks[2].push(place);
  }
  if (typed) for (const rank of ranks) rank.sort((one, other) => one.where.length - other.where.length);
  return ranks.flat().slice(0, most);
}
