/** Equal layers, of which one is drawn: the corresponding tasks of the others, and their names. */

import { STRIP_WIDTH } from "../../../../inspector/drawing/layout_constants.json";
import type { DeckGraph } from "../model/graph.ts";
import { grouped } from "../format.ts";
import { type Child, Part } from "./module_parts.ts";
import { tasksOf } from "./repeats.ts";

/** Maximum number of layers with numbered buttons, and with cells; beyond that they share one strip. */
export const MOST_BUTTONS = 6;
export const MOST_CELLS = 23;
export const BUTTON = { width: 28, pitch: 32, height: 16 };
export const CELL = { width: 7, pitch: 9, height: 12 };
/** Maximum number of names in the title of layers without a module. */
const MOST_NAMES = 3;

/** Return the total width of the buttons of this many layers. */
export function layersWidth(count: number): number {
  if (count > MOST_CELLS) return STRIP_WIDTH;
  const { width, pitch } = count > MOST_BUTTONS ? CELL : BUTTON;
  return (count - 1) * pitch + width;
}

export class Layers {
  /** Tasks of each layer, the first created first; tasks at the same index correspond. */
  readonly members: readonly Int32Array[];
  /** Titles such as "blocks.3", and short ones such as "3". */
  readonly titles: readonly string[];
  readonly numbers: readonly string[];
  /** Module paths such as "encoder.blocks.3"; "" if a layer consists of several modules. */
  readonly paths: readonly string[];
  /** Index of the layer used for the layout. */
  readonly drawn: number;
  private readonly places = new Map<number, number>();

  constructor(
    readonly id: number,
    /** Equal layers that contain these. */
    readonly around: Layers | null,
    part: Part,
    graph: DeckGraph,
  ) {
    this.members = part.members.map((member) => Int32Array.from(tasksOf(member)));
    const [shown] = part.members.slice(-1);
    const named = shown.every((child) => typeof child === "number") ? namesOf(shown, graph) : null;
    this.titles = part.members.map((member) => named ?? titleOf(member));
    this.paths = part.members.map(([first, ...others]) => (others.length || typeof first === "number" ? "" : first.path));
    const counted = this.titles.map((title) => /\d+$/.exec(title)?.[0] ?? "");
    const isCounted = new Set(counted).size === counted.length && !counted.includes("");
    this.numbers = isCounted ? counted : this.titles.map((_, layer) => String(layer));
    this.drawn = part.members.length - 1;
    this.members.forEach((tasks, layer) => {
      tasks.forEach((task, place) => this.places.set(task, layer * tasks.length + place));
    });
  }

  get count(): number {
    return this.members.length;
  }

  /** Return the layer that contains a task; -1 if there is none. */
  layerOf(task: number): number {
    const place = this.places.get(task);
    return place === undefined ? -1 : Math.floor(place / this.members[0].length);
  }

  /** Return the task of a layer that corresponds to this one; the task itself if it is in no layer. */
  at(task: number, layer: number): number {
    const place = this.places.get(task);
    return place === undefined ? task : this.members[layer][place % this.members[0].length];
  }
}

/** Return the title of a layer: "cell", "cell, head", "layers.0 – layers.5". */
function titleOf(member: readonly Child[]): string {
  const names = [...new Set(member.filter((child) => typeof child !== "number").map(({ title }) => title))];
  return names.length > 3 ? `${names[0]} – ${names[names.length - 1]}` : names.join(", ");
}

/** Return the names of tasks: "Sin, Mul and 4 more". */
export function namesOf(tasks: readonly number[], { titles }: DeckGraph): string {
  return someNames(tasks.map((task) => titles[task]));
}

/** Return the distinct names, at most the first few. */
export function someNames(all: readonly string[]): string {
  const names = [...new Set(all)];
  const more = names.length > MOST_NAMES + 1 ? names.splice(MOST_NAMES).length : 0;
  return names.join(", ") + (more ? ` and ${more} more` : "");
}

/** Return the lines of tasks created in one function, "model.py:60–66"; otherwise their number, "12 tasks". */
export function linesOf(tasks: readonly number[], graph: DeckGraph): string {
  const lines = tasks.map((task) => graph.sourceLine(task));
  const [first] = lines;
  if (!first || lines.some((line) => line?.file !== first.file || line.function !== first.function)) {
    return tasks.length === 1 ? "1 task" : `${tasks.length} tasks`;
  }
  const numbers = lines.map((line) => line?.line ?? first.line);
  const [from, to] = [Math.min(...numbers), Math.max(...numbers)];
  const file = first.short.slice(0, first.short.lastIndexOf(":"));
  return `${file}:${from}${to > from ? `–${to}` : ""}`;
}

/** Return the subtitle: "Block ×4", "(LSTMCell + 2 tasks) ×1,500", "model.py:60–66 ×1,539". */
export function layersSubtitle({ members }: Part, graph: DeckGraph): string {
  const [member] = members.slice(-1);
  if (member.every((child) => typeof child === "number")) return `${linesOf(member, graph)} ×${grouped(members.length)}`;
  const parts = member.filter((child) => typeof child !== "number");
  const classes = [...new Set(parts.map(({ className }) => className))].join(", ");
  const loose = member.length - parts.length;
  const one = loose ? `(${classes} + ${loose} ${loose === 1 ? "task" : "tasks"})` : classes;
  return `${one} ×${grouped(members.length)}`;
}
