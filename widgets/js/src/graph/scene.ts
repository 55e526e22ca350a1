/** A layout with indices for drawing, hit testing and transitions. */

import type { Layout, PlacedBox, PlacedWire, Rect } from "../layout/layout_types.ts";
import type { Tree } from "../layout/box_tree.ts";
import type { DeckGraph } from "../model/graph.ts";
import { Changing } from "./layer_substitution.ts";
import { Grid, inside } from "./spatial_index.ts";
import { type Choice, layersOfTask } from "./layer_choice.ts";
import type { SceneParts, Spot, Wire } from "./scene_types.ts";
import { WireIndex } from "./wire_index.ts";
import { Outline, pathData } from "./wire_path.ts";

/** Number of edges that make a fan. */
const FAN = 8;

const NOWHERE = -1;

/** Space between the label of a row and the edge of its box, pixels. */
const BESIDE_ROW = 8;

export class Scene implements SceneParts {
  readonly spots: readonly Spot[];
  readonly wires: readonly Wire[];
  readonly grid: Grid;
  /** Number of changes of the equal layers' choice; each changes the tasks and edges of spots and wires. */
  version = 0;
  /** Layers shown for equal layers. */
  choice: Choice = new Map();
  /** Index of each task's spot, or -1. */
  readonly spotOf: Int32Array;
  /** Closed box around each task, as an index in `layout.boxes`, or -1. */
  readonly cardOf: Int32Array;
  /** Wire of each edge, or -1; wires in `changing` are not included. */
  private readonly wireOf: Int32Array;
  /** Row of chips of each task, as an index in `layout.rows`, or -1. */
  readonly rowOf: Int32Array;
  /** Maximum width of each row's label, limited by the left edge of the box around it. */
  readonly rowRooms: readonly number[];
  /** Index in `layout.boxes` by box id. */
  readonly boxes = new Map<number, number>();
  /** Spots and wires that represent other tasks when equal layers change. */
  private readonly changing: Changing;
  /** Index of the wires, created on first use. */
  private wireIndex: WireIndex | null = null;

  constructor(
    readonly graph: DeckGraph,
    readonly tree: Tree,
    readonly layout: Layout,
  ) {
    this.spots = spotsOf(layout);
    this.spotOf = new Int32Array(graph.count).fill(NOWHERE);
    this.spots.forEach((spot, index) => {
      if (spot.kind !== "stub") for (const task of spot.tasks) this.spotOf[task] = index;
    });
    tree.standIn.forEach((drawn, task) => {
      this.spotOf[task] = this.spotOf[drawn];
    });
    layout.boxes.forEach((placed, index) => this.boxes.set(placed.box.id, index));
    this.cardOf = cardsOfTasks(tree, layout, this.spotOf);
    const layers = tree.layersOf.size ? layout.boxes.filter(({ box, closed }) => box.layers && !closed).reverse() : [];
    this.wires = layout.wires.flatMap((wire) => splitAt(layers, wire)).filter(({ points }) => points.length > 2).map((wire) => indexed(wire, graph));
    this.wireOf = new Int32Array(graph.document.edges.task.length).fill(NOWHERE);
    this.wires.forEach((wire, index) => {
      for (const edge of wire.edges) this.wireOf[edge] = index;
    });
    this.rowOf = new Int32Array(graph.count).fill(NOWHERE);
    layout.rows.forEach(({ tasks }, row) => {
      for (const task of tasks) this.rowOf[task] = row;
    });
    this.rowRooms = layout.rows.map(({ rect }) => {
      const right = rect.x + rect.width;
      const around = this.boxesAround(right, rect.y).at(-1);
      return right - (around ? around.rect.x + BESIDE_ROW : 0);
    });
    this.changing = new Changing(this);
    this.grid = new Grid(
      this.spots.map((spot) => spot.rect),
      layout.width,
      layout.height,
    );
  }

  /** Show these layers. */
  show(choice: Choice): void {
    const isSame = [...choice].every(([id, layer]) => this.choice.get(id) === layer);
    this.choice = choice;
    if (isSame) return;
    this.version++;
    this.changing.show(choice);
  }

  /** Return whether a task or the closed box around it is visible; false in a layer for which another is shown. */
  shows(task: number): boolean {
    for (const [id, layer] of layersOfTask(this.tree, task)) {
      const index = this.boxes.get(id);
      if (index === undefined || this.layout.boxes[index].closed) return true;
      if (this.choice.get(id) !== layer) return false;
    }
    return true;
  }

  /** Return the wires of a task's incoming and outgoing edges. */
  wiresAt(task: number): Set<number> {
    const found = new Set<number>();
    for (const { starts, values } of [this.graph.inEdges, this.graph.outEdges]) {
      for (const edge of values.subarray(starts[task], starts[task + 1])) {
        for (const wire of this.changing.wiresOf.get(edge) ?? [this.wireOf[edge]]) if (wire >= 0) found.add(wire);
      }
    }
    return found;
  }

  /** Return the wires within this distance of a point. */
  wiresNear(x: number, y: number, distance: number): Wire[] {
    this.wireIndex ??= new WireIndex(this.wires, this.layout);
    const found = this.wireIndex.near(x, y, distance);
    return [...found].map((index) => this.wires[index]);
  }

  /** Return the rectangle of a task or of the closed box around it. */
  rectOf(task: number): Rect | null {
    const spot = this.spotOf[task];
    if (spot >= 0) return this.spots[spot].rect;
    const card = this.cardOf[task];
    return card >= 0 ? this.layout.boxes[card].rect : null;
  }

  /** Return the closed box that hides a task; null if the task is visible. */
  cardAround(task: number): PlacedBox | null {
    const card = this.spotOf[task] >= 0 ? NOWHERE : this.cardOf[task];
    return card >= 0 ? this.layout.boxes[card] : null;
  }

  /** Return the open boxes around a point, outermost first. */
  boxesAround(x: number, y: number): PlacedBox[] {
    return this.layout.boxes.filter(
      ({ rect, closed }) =>
        !closed && x >= rect.x && x <= rect.x + rect.width && y >= rect.y && y <= rect.y + rect.height,
    );
  }
}

function spotsOf(layout: Layout): Spot[] {
  const tasks = layout.tasks.map(
    ({ task, rect, label, caption, chip }): Spot => ({
      kind: "task", task, tasks: [task], user: task, rect, label, caption, small: chip, stub: null,
    }),
  );
  const pills = layout.pills.map(
    ({ tasks, user, rect, label, dot }): Spot => ({
      kind: "pill", task: tasks[0], tasks, user, rect, label, caption: "", small: dot, stub: null,
    }),
  );
  const stubs = layout.stubs.map(
    ({ kind, task, others, rect, label, dot }): Spot => ({
      kind: "stub", task: others[0], tasks: others, user: task, rect, label, caption: "", small: dot, stub: kind,
    }),
  );
  return [...tasks, ...pills, ...stubs];
}

/** Return the closed box around each task. A pill may be drawn outside of its first user's box. */
function cardsOfTasks(tree: Tree, layout: Layout, spotOf: Int32Array): Int32Array {
  const cardOfBox = new Map<number, number>();
  layout.boxes.forEach((placed, index) => {
    if (placed.closed) cardOfBox.set(placed.box.id, index);
  });
  const around = tree.boxes.map((box) => {
    for (let each: typeof box | null = box; each; each = each.parent) {
      const card = cardOfBox.get(each.id);
      if (card !== undefined) return card;
    }
    return NOWHERE;
  });
  return Int32Array.from(tree.boxOf, (box, task) => (spotOf[task] >= 0 ? NOWHERE : around[box]));
}

/**
 * Split a wire at the edges of equal layers, innermost first. Within them it also represents the edges from one layer
 * to the next, which must not be drawn up to a task outside.
 */
function splitAt(layers: readonly PlacedBox[], wire: PlacedWire): (PlacedWire & { isOutside?: boolean })[] {
  const { kind, points } = wire;
  const [x, y, toX, toY] = [...points.slice(0, 2), ...points.slice(-2)];
  const left = layers.find(({ rect }) => inside(rect, x, y) && !inside(rect, toX, toY));
  const entered = layers.find(({ rect }) => inside(rect, toX, toY) && !inside(rect, x, y));
  if (kind !== "gradient" || (!left && !entered)) return [wire];
  const [within, others] = left ? cutAt(points, left.rect.y + left.rect.height) : [[], points];
  const [across, last] = entered ? cutAt(others, entered.rect.y) : [others, []];
  return [
    { ...wire, kind: "out", points: within },
    { ...wire, isOutside: true, points: across },
    { ...wire, kind: "in", points: last },
  ];
}

/** Split the corners of a line at a height; it crosses the edge of a box vertically. */
function cutAt(points: readonly number[], y: number): [number[], number[]] {
  let at = 0;
  while (at + 2 < points.length && points[at + 1] < y) at += 2;
  const cut = [points[at], y];
  return [[...points.slice(0, at), ...cut], [...cut, ...points.slice(points[at + 1] === y ? at + 2 : at)]];
}

function indexed(wire: PlacedWire, graph: DeckGraph): Wire {
  const { points, edges } = wire;
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (let at = 0; at < points.length; at += 2) {
    left = Math.min(left, points[at]);
    right = Math.max(right, points[at]);
    top = Math.min(top, points[at + 1]);
    bottom = Math.max(bottom, points[at + 1]);
  }
  const { task, next } = graph.document.edges;
  const fan =
    edges.length === 1 &&
    (degree(graph.inEdges.starts, next[edges[0]]) > FAN || degree(graph.outEdges.starts, task[edges[0]]) > FAN);
  const bounds = { x: left, y: top, width: right - left, height: bottom - top };
  return { ...wire, outline: new Outline(pathData(points)), bounds, fan };
}

function degree(starts: Int32Array, task: number): number {
  return starts[task + 1] - starts[task];
}
