/**
 * Choice of the equal layer that the graph shows at a moment: the running one or the last that ran, unless the user
 * pinned another.
 */

import type { Layers } from "../layout/layers.ts";
import type { Tree } from "../layout/box_tree.ts";
import { NEVER, type Replay } from "../model/replay.ts";
import { lastUpTo } from "../binary_search.ts";

/** Shown layer, by id of the box that represents the equal layers. */
export type Choice = ReadonlyMap<number, number>;

/**
 * Times at which the tasks of equal layers run: sorted places with the layer of each; first and last place of each
 * layer.
 */
export interface Course {
  places: Int32Array;
  layers: Int32Array;
  first: Int32Array;
  last: Int32Array;
}

export class LayerChoice {
  private readonly courses = new Map<string, Course>();
  private readonly all: readonly Layers[];

  constructor(
    readonly tree: Tree,
    readonly replay: Replay,
  ) {
    this.all = tree.boxes.flatMap(({ layers }) => layers ?? []);
  }

  /** Return the choice. `pins` are the user's; the layers of a selected task are also shown. */
  at(t: number, selected: number | null, pins: Choice): Choice {
    const wanted = selected === null ? null : layersOfTask(this.tree, selected);
    const choice = new Map<number, number>();
    for (const layers of this.all) {
      const { id } = layers;
      choice.set(id, pins.get(id) ?? wanted?.get(id) ?? layerAt(this.course(layers, choice), t));
    }
    return choice;
  }

  /** Return the course of layers that are nested in the chosen ones. */
  course(layers: Layers, choice: Choice): Course {
    let key = `${layers.id}`;
    for (let each = layers.around; each; each = each.around) key += ` ${choice.get(each.id)}`;
    let course = this.courses.get(key);
    if (!course) this.courses.set(key, (course = courseOf(this.tree, this.replay, layers, choice)));
    return course;
  }
}

function layerAt({ places, layers }: Course, t: number): number {
  return places.length ? layers[lastUpTo(places, t)] : 0;
}

function courseOf(tree: Tree, { place }: Replay, layers: Layers, choice: Choice): Course {
  const found: { at: number; layer: number }[] = [];
  const first = new Int32Array(layers.count).fill(NEVER);
  const last = new Int32Array(layers.count).fill(-1);
  layers.members.forEach((tasks, layer) => {
    for (const task of tasks) {
      const shown = inChosen(task, layers.around, choice);
      for (const each of [shown, ...(tree.owned.get(shown) ?? [])]) {
        const at = place[each];
        if (at === NEVER) continue;
        found.push({ at, layer });
        first[layer] = first[layer] === NEVER ? at : Math.min(first[layer], at);
        last[layer] = Math.max(last[layer], at);
      }
    }
  });
  found.sort((a, b) => a.at - b.at);
  return {
    places: Int32Array.from(found, ({ at }) => at),
    layers: Int32Array.from(found, ({ layer }) => layer),
    first,
    last,
  };
}

/**
 * Return the task of the chosen layers that corresponds to a task of the drawn ones; `layers` are the innermost around
 * it.
 */
export function inChosen(task: number, layers: Layers | null, choice: Choice): number {
  for (let each = layers; each; each = each.around) task = each.at(task, choice.get(each.id) ?? each.drawn);
  return task;
}

/** Return the layer of a task, by box. */
export function layersOfTask({ layersOf, standIn, pills, owner }: Tree, task: number): Map<number, number> {
  const found = new Map<number, number>();
  let each = pills[task] ? owner[task] : task;
  for (let depth = 0; ; depth++) {
    const layers = layersOf.get(each)?.[depth];
    if (!layers) return found;
    found.set(layers.id, layers.layerOf(each));
    each = standIn[each] === each ? each : layers.at(each, layers.drawn);
  }
}
