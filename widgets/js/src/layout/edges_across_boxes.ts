/** Direct content of each open visible box, and the wires that cross the edges of boxes. */

import { LARGE_FAN, LONG, ROW_LENGTH } from "../../../../inspector/drawing/layout_constants.json";
import { NONE } from "../model/document.ts";
import { type Box, parameterAt, type Tree } from "./box_tree.ts";

/** Maximum number of places in a box for wires from and to the outside. */
const MOST_THROUGH = 10_000;

/** An item in a box: a task, or a box as `~box.id`. Wires end at tasks and closed boxes. */
export type Item = number;

/**
 * Edges drawn as one line. `between` is set for edges between equal layers, which lead from an item out of their box or
 * into it to an item.
 */
export interface Wire {
  from: Item;
  to: Item;
  edges: number[];
  between: "out" | "in" | null;
}

/** An open box. `links`, `entries` and `exits` name the items that a wire (by index) joins, enters or leaves. */
export interface Contents {
  box: Box;
  /** Items, or the tasks of a row of chips; the latest created first, the order of a backward. */
  slots: (Item | Item[])[];
  ranks: number[];
  /** Number of ranks. */
  height: number;
  /** Index in `slots` of each item. */
  index: Map<Item, number>;
  links: { source: Item; target: Item; wire: number }[];
  entries: { item: Item; wire: number }[];
  exits: { item: Item; wire: number }[];
}

/** A use of a parameter: output `output` of task `user` is its gradient. `parameter` is the AccumulateGrad task. */
export interface Use {
  user: number;
  parameter: number;
  output: number;
  edges: number[];
}

/** The innermost box around both ends of a wire, the items in it that the wire joins, and their distance in ranks. */
interface Crossing {
  box: Box;
  source: Item;
  target: Item;
  span: number;
}

/** The open boxes of a tree from the outermost inwards, with their items, ranks and wires. */
export class Wiring {
  /** Contents by box id. */
  readonly contents = new Map<number, Contents>();
  readonly wires: Wire[] = [];
  /** Parameters of each visible task, in the order of its outputs. */
  readonly uses = new Map<number, Use[]>();
  /** Indices of the wires that are not drawn but marked at both ends. */
  readonly undrawn: number[];
  /** The closed box that each box is or is in, as `~id`; 0 for visible content. */
  private readonly closed: Int32Array;

  constructor(
    private readonly tree: Tree,
    open: ReadonlySet<number>,
  ) {
    this.closed = new Int32Array(tree.boxes.length);
    for (const { id, parent } of tree.boxes) {
      if (parent) this.closed[id] = this.closed[parent.id] || (open.has(id) ? 0 : ~id);
      if (!this.closed[id]) this.contents.set(id, this.contentsOf(tree.boxes[id]));
    }
    this.join();
    const crossings = this.wires.map((wire) => this.crossing(wire));
    this.undrawn = this.findUndrawn(crossings);
    this.lift(crossings);
    this.leadRound();
    for (const contents of this.contents.values()) this.formRows(contents);
  }

  private contentsOf(box: Box): Contents {
    const slots = box.children.map((child) => (typeof child === "number" ? child : ~child.id)).reverse();
    const ranks = slots.map((item) => this.rank(item));
    const height = 1 + ranks.reduce((most, rank) => Math.max(most, rank), 0);
    return { box, slots, ranks, height, index: new Map(), links: [], entries: [], exits: [] };
  }

  private rank(item: Item): number {
    return item < 0 ? this.tree.boxes[~item].rank : this.tree.rankOf[item];
  }

  /** Return the box that directly contains an item. */
  private boxAround(item: Item): Box {
    const { boxes, boxOf } = this.tree;
    return item < 0 ? (boxes[~item].parent as Box) : boxes[boxOf[item]];
  }

  /** Return the item that represents a task: itself, or the closed box around it. */
  shown(task: number): Item {
    return this.closed[this.tree.boxOf[task]] || this.tree.standIn[task];
  }

  /** Join all edges between the same two items into one wire, and collect the uses of parameters. */
  private join(): void {
    const { graph, boxes, pills, between, standIn } = this.tree;
    const { task, output, next } = graph.document.edges;
    const numbers = new Map<number, number>();
    for (let edge = 0; edge < task.length; edge++) {
      const from = this.shown(task[edge]);
      if (pills[next[edge]]) {
        const isDrawn = standIn[task[edge]] === task[edge];
        const parameter = isDrawn ? next[edge] : parameterAt(this.tree, from, output[edge]);
        if (from >= 0 && parameter !== NONE) this.use(from, parameter, output[edge], edge);
        continue;
      }
      const to = this.shown(next[edge]);
      if (from === to || between[edge]) continue;
      const key = (from + boxes.length) * (graph.count + boxes.length) + to + boxes.length;
      const wire = numbers.get(key);
      if (wire === undefined) {
        numbers.set(key, this.wires.length);
        this.wires.push({ from, to, edges: [edge], between: null });
      } else this.wires[wire].edges.push(edge);
    }
  }

  private use(user: number, parameter: number, output: number, edge: number): void {
    let uses = this.uses.get(user);
    if (!uses) this.uses.set(user, (uses = []));
    const known = uses.find((use) => use.parameter === parameter);
    if (known) known.edges.push(edge);
    else uses.push({ user, parameter, output, edges: [edge] });
  }

  private crossing({ from, to }: Wire): Crossing {
    let [source, target] = [from, to];
    let [here, there] = [this.boxAround(source), this.boxAround(target)];
    while (here !== there) {
      const [deep, other] = [here.depth, there.depth];
      if (deep >= other) [source, here] = [~here.id, here.parent as Box];
      if (other >= deep) [target, there] = [~there.id, there.parent as Box];
    }
    return { box: here, source, target, span: this.rank(target) - this.rank(source) };
  }

  /** Find the wires that would fill the picture: large fans of long wires, and wires for which there is no space. */
  private findUndrawn(crossings: readonly Crossing[]): number[] {
    const fans = { from: new Map<Item, number[]>(), to: new Map<Item, number[]>() };
    crossings.forEach(({ span }, wire) => {
      if (span <= LONG) return;
      for (const side of ["from", "to"] as const) {
        const end = this.wires[wire][side];
        const fan = fans[side].get(end);
        if (fan) fan.push(wire);
        else fans[side].set(end, [wire]);
      }
    });
    const undrawn = new Set<number>();
    for (const fan of [...fans.from.values(), ...fans.to.values()]) {
      if (fan.length > LARGE_FAN) for (const wire of fan) undrawn.add(wire);
    }
    const room = new Map<Box, number>();
    for (const { box, slots } of this.contents.values()) room.set(box, 12 * slots.length + 500);
    const through = new Map<Box, number>();
    const shortest = Array.from(crossings.keys()).sort((a, b) => crossings[a].span - crossings[b].span);
    for (const wire of shortest) {
      if (undrawn.has(wire)) continue;
      const { box, span } = crossings[wire];
      const left = (room.get(box) as number) - (span - 1);
      room.set(box, left);
      if (left < 0 || this.isCrowded(wire, box, through)) undrawn.add(wire);
    }
    return [...undrawn].sort((a, b) => a - b);
  }

  /** Return whether one of the boxes whose edge the wire crosses has no space for it. */
  private isCrowded(wire: number, outside: Box, through: Map<Box, number>): boolean {
    const { from, to } = this.wires[wire];
    let isCrowded = false;
    for (const end of [from, to]) {
      for (const { item, box } of this.waysOut(end, outside)) {
        const { height } = this.contents.get(box.id) as Contents;
        const taken = (through.get(box) ?? 0) + (end === from ? height - this.rank(item) : this.rank(item) + 1);
        through.set(box, taken);
        isCrowded ||= taken > MOST_THROUGH;
      }
    }
    return isCrowded;
  }

  /** Add each wire to every box whose edge it crosses, and to the box that contains it. */
  private lift(crossings: readonly Crossing[]): void {
    const undrawn = new Set(this.undrawn);
    crossings.forEach(({ box, source, target }, wire) => {
      if (undrawn.has(wire)) return;
      this.contents.get(box.id)?.links.push({ source, target, wire });
      const { from, to } = this.wires[wire];
      for (const { item, box: left } of this.waysOut(from, box)) this.contents.get(left.id)?.exits.push({ item, wire });
      for (const { item, box: entered } of this.waysOut(to, box)) this.contents.get(entered.id)?.entries.push({ item, wire });
    });
  }

  /** Route edges from one of equal layers to the next out of the bottom of their box and into its top. */
  private leadRound(): void {
    const { tree, wires } = this;
    const { task, next } = tree.graph.document.edges;
    const leaving = new Map<string, { box: Box; item: Item; edges: number[] }>();
    const coming: typeof leaving = new Map();
    tree.between.forEach((id, edge) => {
      const box = tree.boxes[id];
      if (!id || this.closed[id]) return;
      for (const [found, end] of [[leaving, task[edge]], [coming, next[edge]]] as const) {
        const item = this.shown(end);
        const key = `${box.id} ${item}`;
        const known = found.get(key);
        if (known) known.edges.push(edge);
        else found.set(key, { box, item, edges: [edge] });
      }
    });
    for (const [between, found] of [["out", leaving], ["in", coming]] as const) {
      for (const { box, item, edges } of found.values()) {
        const ways = [...this.waysOut(item, box.parent as Box)];
        const side = between === "out" ? "exits" : "entries";
        const end = between === "out" ? "from" : "to";
        const outermost = this.contents.get(ways[ways.length - 1].box.id);
        // a wire from outside is drawn here already
        if (outermost?.[side].some(({ wire }) => wires[wire][end] === item)) continue;
        for (const way of ways) this.contents.get(way.box.id)?.[side].push({ item: way.item, wire: wires.length });
        wires.push({ from: item, to: item, edges, between });
      }
    }
  }

  /**
   * Iterate over the boxes around an item, from the innermost up to but excluding `outside`, each with the item in it
   * that the wire comes from.
   */
  private *waysOut(end: Item, outside: Box): Generator<{ item: Item; box: Box }> {
    let item = end;
    let box = this.boxAround(item);
    while (box !== outside) {
      yield { item, box };
      item = ~box.id;
      box = box.parent as Box;
    }
  }

  /** Combine 16 or more tasks with the same name at the same rank of a box into a row. */
  private formRows(contents: Contents): void {
    const { name } = this.tree.graph.document.tasks;
    const alike = new Map<string, Item[]>();
    const kindOf = (item: Item) => `${this.rank(item)} ${name[item]}`;
    for (const item of contents.slots as Item[]) {
      if (item < 0) continue;
      const kind = kindOf(item);
      const found = alike.get(kind);
      if (found) found.push(item);
      else alike.set(kind, [item]);
    }
    const slots: (Item | Item[])[] = [];
    const ranks: number[] = [];
    for (const item of contents.slots as Item[]) {
      if (contents.index.has(item)) continue;
      const row = item < 0 ? [] : (alike.get(kindOf(item)) as Item[]);
      const isRow = row.length >= ROW_LENGTH;
      for (const each of isRow ? row : [item]) contents.index.set(each, slots.length);
      slots.push(isRow ? row : item);
      ranks.push(this.rank(item));
    }
    contents.slots = slots;
    contents.ranks = ranks;
  }
}
