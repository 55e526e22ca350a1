/**
 * Layout of the whole picture: `layOut(tree, open)`. Every box is laid out separately, from the innermost outwards
 * (layered_layout.ts), using its cells (task_cell.ts, row_cell.ts, box_cells.ts) and the wires across its edge
 * (edges_across_boxes.ts). Only visible items are laid out. inspector/drawing/layout.py does the same for the SVG. With
 * all boxes open both place tasks identically, so both have to be changed together
 * (tests/widgets/deck/test_layout_agrees.py).
 */

import {
  HEADER, LEAST_TALL, MOST_PILLS, PAD, TALL, WIDEST_SIDE,
} from "../../../../inspector/drawing/layout_constants.json";
import type { Arrangement, Contained } from "./arrangement.ts";
import { BoxCell, FoldedCell } from "./box_cells.ts";
import { type Canvas, type Cell, type Inside, placeInside } from "./cells.ts";
import { arrange } from "./layered_layout.ts";
import type { Layout, PlacedWire } from "./layout_types.ts";
import { RowCell, type Shared } from "./row_cell.ts";
import type { Side } from "./pills_and_stubs.ts";
import { TaskCell } from "./task_cell.ts";
import { shorten, shortenMiddle } from "./text_width.ts";
import { isInModule, type Tree } from "./box_tree.ts";
import { type Contents, type Item, type Use, Wiring } from "./edges_across_boxes.ts";

/** The last arrangement of each box and its input. A box is arranged again only if its input has changed. */
export class LayoutCache {
  private readonly known = new Map<number, { contained: Contained; arrangement: Arrangement }>();

  arrange(box: number, contained: Contained): Arrangement {
    const last = this.known.get(box);
    if (last && isSame(last.contained, contained)) return last.arrangement;
    const arrangement = arrange(contained);
    this.known.set(box, { contained, arrangement });
    return arrangement;
  }
}

/** Lay out the picture with these boxes open, in columns of height `tall` if possible. */
export function layOut(tree: Tree, open: ReadonlySet<number>, cache = new LayoutCache(), tall = TALL): Layout {
  const wiring = new Wiring(tree, open);
  const inside = new Assembly(tree, wiring, cache, tall).top();
  const canvas: Canvas = {
    boxes: [],
    tasks: [],
    pills: [],
    stubs: [],
    rows: [],
    wires: [],
    exits: new Map(),
    links: new Map(),
    entries: new Map(),
    pending: [],
  };
  const { width, height } = inside.arrangement;
  canvas.pending.push({ inside, x: 0, y: 0, top: 0, bottom: height });
  for (let next = canvas.pending.pop(); next; next = canvas.pending.pop()) placeInside(next, canvas);
  const { tasks, pills, stubs, rows } = canvas;
  const boxes = canvas.boxes.sort((a, b) => a.depth - b.depth);
  const wires = [...canvas.wires, ...joined(wiring, canvas)];
  let rise = 0;
  for (const { points } of wires) for (let at = 3; at < points.length; at += 2) rise = Math.max(rise, points[at - 2] - points[at]);
  return { width, height, rise, boxes, tasks, pills, stubs, rows, wires };
}

/** Return the wires between cells, joined from their pieces: out of boxes, across, into boxes. */
function joined(wiring: Wiring, { exits, links, entries }: Canvas): PlacedWire[] {
  const wires: PlacedWire[] = [];
  wiring.wires.forEach(({ from, to, edges, between }, wire) => {
    const across = links.get(wire);
    if (!across && !between) return;
    const points = chained([...(exits.get(wire) ?? []).reverse(), across ?? [], ...(entries.get(wire) ?? [])]);
    if (points.length) wires.push({ kind: between ?? "gradient", edges, from, to, points });
  });
  return wires;
}

/** Join the pieces of one wire, each starting at the end of the previous one, without corners on straight lines. */
function chained(pieces: readonly number[][]): number[] {
  const points: number[] = [];
  for (const piece of pieces) {
    for (let at = 0; at < piece.length; at += 2) {
      const [x, y] = [tenth(piece[at]), tenth(piece[at + 1])];
      const end = points.length;
      if (end && points[end - 2] === x && points[end - 1] === y) continue;
      if (end > 2 && points[end - 2] === x && points[end - 4] === x) points[end - 1] = y;
      else points.push(x, y);
    }
  }
  return points;
}

function tenth(value: number): number {
  return Math.round(value * 10) / 10;
}

/** Assembly of the cells of every open box, the innermost first, and their layout. */
class Assembly {
  /** Cells by box id. */
  private readonly cells = new Map<number, BoxCell>();
  /** Stubs for wires that are not drawn completely, by their item. */
  private readonly marks: Map<Item, Side[]>;
  /** Weight of each wire; the heaviest wire of an item is drawn straight. */
  private readonly weights: number[];

  constructor(
    private readonly tree: Tree,
    private readonly wiring: Wiring,
    private readonly cache: LayoutCache,
    private readonly tall: number,
  ) {
    const { next } = tree.graph.document.edges;
    this.weights = wiring.wires.map(({ edges }) =>
      edges.reduce((most, edge) => Math.max(most, 1 + tree.weight[next[edge]]), 0),
    );
    this.marks = this.makeMarks();
  }

  top(): Inside {
    const [whole, ...others] = this.wiring.contents.values();
    for (const contents of others.reverse()) {
      const inside = this.layOutBox(contents);
      this.cells.set(contents.box.id, new BoxCell(contents.box, inside, this.weights));
    }
    return this.layOutBox(whole);
  }

  private layOutBox(contents: Contents): Inside {
    const { wires } = this.wiring;
    const { index, entries, exits } = contents;
    const cells = contents.slots.map((slot) => (typeof slot === "number" ? this.cell(slot) : this.row(slot)));
    const place = (item: Item) => index.get(item) as number;
    const weight = (wire: number) => this.weights[wire];
    const links = this.linksOf(contents, cells);
    const around = contents.box.depth * (HEADER + PAD);
    const contained: Contained = {
      extents: cells.map((cell) => cell.extent),
      ranks: contents.ranks,
      links: links.map(({ link }) => link),
      entries: entries.map(({ item, wire }) => {
        const shift = cells[place(item)].arrives(wire, wires[wire].to);
        return { item: place(item), shift, weight: weight(wire), output: 0 };
      }),
      exits: exits.map(({ item, wire }) => {
        const shift = cells[place(item)].leaves(wire, wires[wire].from);
        return { item: place(item), shift, weight: weight(wire), output: this.output(wire) };
      }),
      tall: Math.max(LEAST_TALL, this.tall - around),
    };
    return {
      cells,
      arrangement: this.cache.arrange(contents.box.id, contained),
      links: links.map(({ wire }) => wire),
      entries: entries.map(({ wire }) => wire),
      exits: exits.map(({ wire }) => wire),
    };
  }

  /** Return the links. A grid of chips has one wire for all that would look the same; it represents their edges. */
  private linksOf(
    { links, index }: Contents,
    cells: readonly Cell[],
  ): { wire: number; link: Contained["links"][number] }[] {
    const { wires } = this.wiring;
    const drawn = new Map<string, number>();
    const found: { wire: number; link: Contained["links"][number] }[] = [];
    for (const { source: from, target: to, wire } of links) {
      const [source, target] = [index.get(from) as number, index.get(to) as number];
      const leaves = cells[source].leaves(wire, wires[wire].from);
      const arrives = cells[target].arrives(wire, wires[wire].to);
      const way = `${source} ${target} ${leaves} ${arrives}`;
      const same = drawn.get(way);
      if (same !== undefined) for (const edge of wires[wire].edges) wires[same].edges.push(edge);
      else {
        drawn.set(way, wire);
        const link = { source, target, leaves, arrives, weight: this.weights[wire], output: this.output(wire) };
        found.push({ wire, link });
      }
    }
    return found;
  }

  private output(wire: number): number {
    return this.tree.graph.document.edges.output[this.wiring.wires[wire].edges[0]];
  }

  private cell(item: Item): Cell {
    if (item >= 0) return this.taskCell(item);
    const open = this.cells.get(~item);
    return open ?? new FoldedCell(this.tree, this.tree.boxes[~item], this.marks.get(item) ?? []);
  }

  private taskCell(task: number): TaskCell {
    const { graph, captions } = this.tree;
    const uses = this.wiring.uses.get(task) ?? [];
    let sides = uses.map((use) => ({ output: use.output, side: this.side(use) }));
    if (sides.length > MOST_PILLS) sides = summed(sides);
    const beside = [...sides.map(({ side }) => side), ...(this.marks.get(task) ?? [])];
    return new TaskCell(task, graph.titles[task], captions.get(task) ?? "", beside);
  }

  private row(tasks: readonly number[]): RowCell {
    const own = new Map<number, Side[]>();
    const shared: Shared[] = [];
    const usersOf = new Map<number, Map<number, number[]>>();
    for (const task of tasks) {
      for (const { parameter, edges } of this.wiring.uses.get(task) ?? []) {
        const users = usersOf.get(parameter);
        if (users) users.set(task, edges);
        else usersOf.set(parameter, new Map([[task, edges]]));
      }
    }
    for (const [parameter, users] of usersOf) {
      const [[first, edges]] = users;
      const kind = users.has(this.tree.owner[parameter]) ? "pill" : "parameter";
      const label = this.parameterLabel(parameter, kind, first);
      const side: Side = { kind, tasks: [parameter], label, edges, end: parameter };
      if (users.size > 1) shared.push({ side, users });
      else own.set(first, [...(own.get(first) ?? []), side]);
    }
    shared.push(...this.sharedMarks(tasks));
    return new RowCell(tasks, this.tree.graph.titles[tasks[0]], own, shared);
  }

  private sharedMarks(tasks: readonly number[]): Shared[] {
    const shared: Shared[] = [];
    for (const kind of ["to", "from"] as const) {
      const marked = tasks.flatMap((task) =>
        (this.marks.get(task) ?? []).filter((side) => side.kind === kind).map((side) => ({ task, side })),
      );
      if (!marked.length) continue;
      const others = [...new Set(marked.flatMap(({ side }) => side.tasks))];
      const edges = marked.flatMap(({ side }) => side.edges);
      const ends = [...new Set(edges.map((edge) => this.endOf(edge, kind)))];
      const side: Side = { kind, tasks: others, label: this.markLabel(ends), edges, end: ends[0] };
      shared.push({ side, users: new Map(marked.map((each) => [each.task, each.side.edges])) });
    }
    return shared;
  }

  private endOf(edge: number, kind: "to" | "from"): Item {
    const { task, next } = this.tree.graph.document.edges;
    return this.wiring.shown(kind === "to" ? next[edge] : task[edge]);
  }

  private side({ user, parameter, edges }: Use): Side {
    const kind = this.tree.owner[parameter] === user ? "pill" : "parameter";
    return { kind, tasks: [parameter], label: this.parameterLabel(parameter, kind, user), edges, end: parameter };
  }

  private parameterLabel(parameter: number, kind: "pill" | "parameter", user: number): string {
    const { graph } = this.tree;
    const name = graph.parameter(parameter);
    if (!name) {
      const { forms, metas, tasks } = graph.document;
      const meta = metas[forms[tasks.takes[parameter]]?.[0]];
      return meta ? `leaf ${meta.shape === null ? "nested" : meta.shape.join("×") || "scalar"}` : "leaf";
    }
    const module = graph.module(user);
    const isOwn = kind === "pill" && isInModule(name, module);
    return shortenMiddle(isOwn ? name.slice(module.length + 1) : name, WIDEST_SIDE);
  }

  private makeMarks(): Map<Item, Side[]> {
    const { wires, undrawn } = this.wiring;
    const ends = new Map<string, { kind: "to" | "from"; item: Item; wires: number[] }>();
    const note = (kind: "to" | "from", item: Item, wire: number) => {
      const found = ends.get(`${kind} ${item}`);
      if (found) found.wires.push(wire);
      else ends.set(`${kind} ${item}`, { kind, item, wires: [wire] });
    };
    for (const wire of undrawn) {
      note("to", wires[wire].from, wire);
      note("from", wires[wire].to, wire);
    }
    const { task, next } = this.tree.graph.document.edges;
    const marks = new Map<Item, Side[]>();
    for (const { kind, item, wires: numbers } of ends.values()) {
      const found = numbers.map((number) => wires[number]);
      const others = found.map((wire) => (kind === "to" ? wire.to : wire.from));
      const tasks = found.map(({ edges }) => (kind === "to" ? next : task)[edges[0]]);
      const edges = found.flatMap((wire) => wire.edges);
      const side: Side = { kind, tasks, label: this.markLabel(others), edges, end: others[0] };
      marks.set(item, [...(marks.get(item) ?? []), side]);
    }
    return marks;
  }

  private markLabel(ends: readonly Item[]): string {
    const { boxes, graph } = this.tree;
    const names = new Set(ends.map((end) => (end < 0 ? boxes[~end].title : graph.titles[end])));
    const [name] = names;
    const shown = names.size === 1 ? shorten(name, WIDEST_SIDE) : ends.some((end) => end < 0) ? "places" : "tasks";
    return ends.length === 1 ? shown : `${shown} ×${ends.length}`;
  }
}

/** Combine very many parameters of one task into one pill, and those drawn elsewhere into one stub. */
function summed(sides: readonly { output: number; side: Side }[]): { output: number; side: Side }[] {
  return (["pill", "parameter"] as const).flatMap((kind) => {
    const same = sides.map(({ side }) => side).filter((side) => side.kind === kind);
    if (!same.length) return [];
    const label = same.length === 1 ? same[0].label : `${same.length} parameters`;
    const tasks = same.flatMap((side) => side.tasks);
    const side: Side = { kind, tasks, label, edges: same.flatMap((each) => each.edges), end: tasks[0] };
    return [{ output: sides[0].output, side }];
  });
}

function isSame(one: Contained, other: Contained): boolean {
  return (
    one.tall === other.tall &&
    one.ranks.length === other.ranks.length &&
    one.ranks.every((rank, item) => rank === other.ranks[item]) &&
    areSame(one.extents, other.extents) &&
    areSame(one.links, other.links) &&
    areSame(one.entries, other.entries) &&
    areSame(one.exits, other.exits)
  );
}

function areSame<T extends object>(some: readonly T[], others: readonly T[]): boolean {
  return (
    some.length === others.length &&
    some.every((one, index) => (Object.keys(one) as (keyof T)[]).every((key) => one[key] === others[index][key]))
  );
}
