/**
 * Substitution in a scene when equal layers, of which one is drawn, show another: the tasks and edges of its spots and
 * wires.
 */

import type { Layers } from "../layout/layers.ts";
import { parameterAt, type Tree } from "../layout/box_tree.ts";
import { NONE } from "../model/document.ts";
import type { Ragged } from "../model/graph.ts";
import { type Choice, inChosen, layersOfTask } from "./layer_choice.ts";
import type { SceneParts, Spot, Wire } from "./scene_types.ts";

/** A spot with its tasks in the drawn layers; for a parameter, the output of its user that leads to it, else NONE. */
interface ChangingSpot {
  spot: Spot;
  user: number;
  tasks: readonly { task: number; output: number }[];
}

/** A wire with the tasks of the drawn layers at its ends. */
interface ChangingWire {
  index: number;
  wire: Wire;
  /** Edges of all layers, which lead to a task outside of them. */
  edges: readonly number[];
  sources: readonly number[];
  targets: readonly number[];
  /** Outputs of its edges; an edge to a parameter has the same output in each layer. */
  outputs: ReadonlySet<number>;
  /** Layers that it leaves; `entered` are those that it enters. */
  left: Layers | null;
  entered: Layers | null;
}

export class Changing {
  /**
   * Wires that currently represent each edge. For a wire into the first layer, the edges come from outside; between
   * layers they lead from one layer to the next.
   */
  readonly wiresOf = new Map<number, number[]>();
  private readonly spots: readonly ChangingSpot[];
  private readonly wires: readonly ChangingWire[];

  constructor(
    private readonly scene: SceneParts,
  ) {
    const { tree, layout } = scene;
    const open = new Set(layout.boxes.filter(({ closed }) => !closed).map(({ box }) => box.id));
    const around = (task: number) => layersAround(tree, tree.standIn[task], open);
    const isAny = tree.layersOf.size > 0;
    this.spots = isAny ? scene.spots.filter(({ user, tasks }) => around(user >= 0 ? user : tasks[0])).map((spot) => this.spotOf(spot)) : [];
    this.wires = isAny ? scene.wires.flatMap((wire, index) => this.wireOf(wire, index, around) ?? []) : [];
  }

  private spotOf(spot: Spot): ChangingSpot {
    const { tree, graph } = this.scene;
    const { next, output } = graph.document.edges;
    const outputTo = (parameter: number) => {
      if (spot.kind === "task" || spot.user < 0 || !tree.pills[parameter]) return NONE;
      const edge = edgesAt(graph.outEdges, [spot.user]).find((each) => next[each] === parameter);
      return edge === undefined ? NONE : output[edge];
    };
    const tasks = spot.tasks.map((task) => ({ task: tree.standIn[task], output: outputTo(task) }));
    return { spot, user: spot.user, tasks };
  }

  private wireOf(wire: Wire, index: number, around: (task: number) => Layers | null): ChangingWire | null {
    const { tree, graph } = this.scene;
    const { task, next, output } = graph.document.edges;
    const drawn = (tasks: readonly number[]) => [...new Set(tasks.map((each) => tree.standIn[each]))];
    const sources = drawn(wire.edges.map((edge) => task[edge]));
    const targets = drawn(wire.edges.map((edge) => next[edge]));
    const [here, there] = [around(sources[0]), around(targets[0])];
    if (!here && !there) return null;
    const outputs = new Set(wire.edges.map((edge) => output[edge]));
    const left = here && wire.kind !== "in" && (wire.kind === "out" || !isAround(here, there)) ? here : null;
    const entered = there && wire.kind !== "out" && (wire.kind === "in" || !isAround(there, here)) ? there : null;
    return { index, wire, edges: wire.edges, sources, targets, outputs, left, entered };
  }

  /** Substitute the tasks and edges of the chosen layers. */
  show(choice: Choice): void {
    const { tree } = this.scene;
    const shown = (task: number) => inChosen(task, tree.layersOf.get(task)?.at(-1) ?? null, choice);
    for (const { spot, user, tasks } of this.spots) {
      if (user >= 0) spot.user = shown(user);
      spot.tasks = tasks.map(({ task, output }) => {
        const parameter = output === NONE ? NONE : parameterAt(tree, spot.user, output);
        return parameter === NONE ? shown(task) : parameter;
      });
      [spot.task] = spot.tasks;
    }
    this.wiresOf.clear();
    for (const each of this.wires) {
      const edges = this.edgesOf(each, choice, shown);
      if (edges.length) each.wire.edges = edges;
      for (const edge of each.wire.edges) this.wiresOf.set(edge, [...(this.wiresOf.get(edge) ?? []), each.index]);
    }
  }

  private edgesOf(changing: ChangingWire, choice: Choice, shown: (task: number) => number): number[] {
    const { tree, graph } = this.scene;
    const { task, next, output } = graph.document.edges;
    const { wire, left, entered, outputs } = changing;
    if (wire.isOutside) return changing.edges.filter((edge) => isChosen(layersOfTask(tree, task[edge]), layersOfTask(tree, next[edge]), choice));
    const sources = changing.sources.map(shown);
    const leaving = edgesAt(graph.outEdges, sources);
    if (wire.kind === "parameter") return leaving.filter((edge) => tree.pills[next[edge]] && outputs.has(output[edge]));
    const targets = new Set(changing.targets.map(shown));
    if (!left && !entered) return leaving.filter((edge) => targets.has(next[edge]));
    const isOutside = (each: number, layers: Layers) => layersOfTask(tree, each).get(layers.id) !== choice.get(layers.id);
    const joins = (ends: readonly number[], edge: number, end: number) => tree.between[edge] || ends.includes(tree.standIn[end]);
    const out = left ? leaving.filter((edge) => !tree.pills[next[edge]] && isOutside(next[edge], left) && joins(changing.targets, edge, next[edge])) : [];
    const into = entered ? edgesAt(graph.inEdges, targets).filter((edge) => isOutside(task[edge], entered) && joins(changing.sources, edge, task[edge])) : [];
    return [...new Set([...out, ...into])];
  }
}

/** Return whether the layers that contain both ends of an edge are the chosen ones. */
function isChosen(from: ReadonlyMap<number, number>, to: ReadonlyMap<number, number>, choice: Choice): boolean {
  return [...from].every(([id, layer]) => to.get(id) !== layer || choice.get(id) === layer);
}

/** Return whether the first layers contain the others or are the same. */
function isAround(layers: Layers, others: Layers | null): boolean {
  for (let each = others; each; each = each.around) if (each === layers) return true;
  return false;
}

/** Return the innermost layers around a drawn task that are not in a closed box. */
function layersAround({ boxes, boxOf }: Tree, task: number, open: ReadonlySet<number>): Layers | null {
  let found: Layers | null = null;
  for (let box = boxes[boxOf[task]]; box?.parent; box = box.parent) {
    if (!open.has(box.id)) found = null;
    else found ??= box.layers;
  }
  return found;
}

function edgesAt({ starts, values }: Ragged, tasks: Iterable<number>): number[] {
  const found: number[] = [];
  for (const task of tasks) for (let at = starts[task]; at < starts[task + 1]; at++) found.push(values[at]);
  return found;
}
