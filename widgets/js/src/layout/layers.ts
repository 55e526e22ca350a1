/** Equal layers, of which one is drawn: which task of another layer stands where, and what the layers are called. */

import { STRIP_WIDTH } from "../../../../inspector/drawing/layout_constants.json";
import type { DeckGraph } from "../model/graph.ts";
import { grouped } from "../format.ts";
import { type Child, Part } from "./module_parts.ts";
import { tasksOf } from "./repeats.ts";

/** So many layers at most are told by numbers on buttons, and by cells; more are one strip. */
export const MOST_BUTTONS = 6;
export const MOST_CELLS = 23;
export const BUTTON = { width: 28, pitch: 32, height: 16 };
export const CELL = { width: 7, pitch: 9, height: 12 };
/** So many names are in the title of layers that no module is in. */
const MOST_NAMES = 3;

/** How wide the buttons of so many layers are together. */
export function layersWidth(count: number): number {
  if (count > MOST_CELLS) return STRIP_WIDTH;
  const { width, pitch } = count > MOST_BUTTONS ? CELL : BUTTON;
  return (count - 1) * pitch + width;
}

export class Layers {
  /** By layer, the first created first, its tasks; those at the same place in two layers do the same. */
  readonly members: readonly Int32Array[];
  /** "blocks.3"; and "3". */
  readonly titles: readonly string[];
  readonly numbers: readonly string[];
  /** "encoder.blocks.3"; "" where a layer is several modules. */
  readonly paths: readonly string[];
  /** The layer that the layout is made for. */
  readonly drawn: number;
  private readonly places = new Map<number, number>();

  constructor(
    readonly id: number,
    /** Those that the drawn one of these lies in. */
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

  /** The layer that holds a task; -1 where it is in none. */
  layerOf(task: number): number {
    const place = this.places.get(task);
    return place === undefined ? -1 : Math.floor(place / this.members[0].length);
  }

  /** The task of a layer at the place that a task has in its own; the task itself where it is in none. */
  at(task: number, layer: number): number {
    const place = this.places.get(task);
    return place === undefined ? task : this.members[layer][place % this.members[0].length];
  }
}

/** "cell", "cell, head", "layers.0 – layers.5". */
function titleOf(member: readonly Child[]): string {
  const names = [...new Set(member.filter((child) => typeof child !== "number").map(({ title }) => title))];
  return names.length > 3 ? `${names[0]} – ${names[names.length - 1]}` : names.join(", ");
}

/** "Sin, Mul and 4 more". */
export function namesOf(tasks: readonly number[], { titles }: DeckGraph): string {
  return someNames(tasks.map((task) => titles[task]));
}

/** Each once, and of many the first. */
export function someNames(all: readonly string[]): string {
  const names = [...new Set(all)];
  const more = names.length > MOST_NAMES + 1 ? names.splice(MOST_NAMES).length : 0;
  return names.join(", ") + (more ? ` and ${more} more` : "");
}

/** "model.py:60–66" of tasks that one function's lines made; otherwise "12 tasks". */
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

/** "Block ×4", "(LSTMCell + 2 tasks) ×1,500", "model.py:60–66 ×1,539". */
export function layersSubtitle({ members }: Part, graph: DeckGraph): string {
  const [member] = members.slice(-1);
  if (member.every((child) => typeof child === "number")) return `${linesOf(member, graph)} ×${grouped(members.length)}`;
  const parts = member.filter((child) => typeof child !== "number");
  const classes = [...new Set(parts.map(({ className }) => className))].join(", ");
  const loose = member.length - parts.length;
  const one = loose ? `(${classes} + ${loose} ${loose === 1 ? "task" : "tasks"})` : classes;
  return `${one} ×${grouped(members.length)}`;
}
