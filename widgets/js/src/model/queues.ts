/** The ready queues of a schedule: one for all devices, or one per device. */

import { countBelow } from "../binary_search.ts";
import type { Times } from "./task_times.ts";
import type { DeckGraph } from "./graph.ts";
import { NEVER, type Replay } from "./replay.ts";

/** A device's queue at one position. Its tasks are in the order in which they will run. */
export interface DeviceQueue {
  /** Index of the device, as in `tasks.device`. */
  device: number;
  name: string;
  /** First ready tasks, without the running one. */
  ready: number[];
  /** Number of ready tasks. */
  count: number;
  /** The task at the position if it belongs to this device, else -1. */
  running: number;
  /** The device's next task that is not running; -1 after its last. */
  next: number;
  /** Ready or running tasks of other devices that this device waits for, if it has no ready task. */
  waitsFor: number[];
  /** Number of its tasks that have run. */
  ran: number;
  /** Number of its tasks. */
  all: number;
}

/** Return the devices that have their own queue, the CPU first and then by name; empty if there is only one queue. */
export function devicesWithQueues({ graph }: Replay): number[] {
  const { document } = graph;
  const devices = [...new Set(document.tasks.device)];
  if (document.queues !== "per device" || devices.length < 2) return [];
  const rank = (device: number) => (deviceName(graph, device) === "cpu" ? "" : deviceName(graph, device));
  return devices.sort((one, other) => (rank(one) < rank(other) ? -1 : 1));
}

export function deviceName(graph: DeckGraph, device: number): string {
  return graph.document.devices[device];
}

/** Maximum number of tasks searched to find what a device waits for. */
const MOST = 20_000;

const known = new WeakMap<Replay, Map<number, { places: Int32Array; counts: Int32Array }>>();

/** Return a device's queue at position `t`, with at most `most` ready tasks. */
export function deviceQueue(replay: Replay, device: number, t: number, most: number): DeviceQueue {
  const { places, counts } = placesOf(replay, device);
  const { graph, schedule } = replay;
  const ran = countBelow(places, t);
  const at = replay.running(t);
  const running = at >= 0 && graph.document.tasks.device[at] === device ? at : -1;
  const count = counts[t] - (running >= 0 ? 1 : 0);
  const ready: number[] = [];
  const following = places.subarray(running >= 0 ? ran + 1 : ran);
  for (const place of following) {
    if (ready.length === Math.min(count, most)) break;
    if (replay.readyAt[schedule.order[place]] <= t) ready.push(schedule.order[place]);
  }
  const next = following.length ? schedule.order[following[0]] : -1;
  const waitsFor = !count && running < 0 && next >= 0 ? holding(replay, next, t) : [];
  return { device, name: deviceName(graph, device), ready, count, running, next, waitsFor, ran, all: places.length };
}

/**
 * Return the task that the device is still running when the task at `t` starts, and the nanoseconds `left`; null if it
 * is idle.
 */
export function deviceBusy(replay: Replay, device: number, t: number, times: Times): { task: number; left: number } | null {
  const { places } = placesOf(replay, device);
  const last = places[countBelow(places, t) - 1];
  if (last === undefined || t >= replay.length) return null;
  const left = times.end[last] - times.start[t];
  return left > 0 ? { task: replay.schedule.order[last], left } : null;
}

/** Return the places of a device's tasks, and the number of ready tasks at each position including the running one. */
export function placesOf(replay: Replay, device: number): { places: Int32Array; counts: Int32Array } {
  let found = known.get(replay);
  if (!found) known.set(replay, (found = new Map()));
  let mine = found.get(device);
  if (mine) return mine;
  const { order } = replay.schedule;
  const { tasks } = replay.graph.document;
  const places = Int32Array.from(order.keys()).filter((place) => tasks.device[order[place]] === device);
  const counts = new Int32Array(replay.length + 2);
  for (const place of places) {
    if (replay.readyAt[order[place]] === NEVER) continue;
    counts[replay.readyAt[order[place]]]++;
    counts[place + 1]--;
  }
  for (let t = 1; t < counts.length; t++) counts[t] += counts[t - 1];
  found.set(device, (mine = { places, counts }));
  return mine;
}

/** Return the ready or running tasks upstream of this one. */
function holding({ graph, place, readyAt }: Replay, task: number, t: number): number[] {
  const { starts, values } = graph.inEdges;
  const from = graph.document.edges.task;
  const seen = new Set([task]);
  const found: number[] = [];
  for (const each of seen) {
    if (seen.size > MOST) break;
    for (let at = starts[each]; at < starts[each + 1]; at++) {
      const before = from[values[at]];
      if (place[before] < t || seen.has(before)) continue;
      if (readyAt[before] > t) seen.add(before);
      else if (!found.includes(before)) found.push(before);
    }
  }
  return found.sort((one, other) => place[one] - place[other]);
}

/**
 * Return a sentence such as `ToCopy, which alone lets cuda:0 start, waits behind tasks created later`; "" if no other
 * device waits for this queue.
 */
export function heldUp(replay: Replay, t: number, queue: DeviceQueue, others: readonly DeviceQueue[]): string {
  for (const other of others) {
    const mine = other.waitsFor.filter((task) => task === queue.running || queue.ready.includes(task));
    const last = mine.at(-1);
    if (last === undefined) continue;
    const goes = other.ran ? "go on" : "start";
    const title = replay.graph.titles[last];
    if (last === queue.running) return `${other.name} waits for it`;
    const alone = other.waitsFor.length === 1 ? " alone" : "";
    const behind = replay.place[last] > t + 1 ? `waits behind ${BEHIND[replay.schedule.policy] ?? "others"}` : "runs next";
    return `${title}, which${alone} lets ${other.name} ${goes}, ${behind}`;
  }
  return "";
}

const BEHIND: Record<string, string> = {
  heap: "tasks created later",
  bfs: "tasks that were ready before it",
  dfs: "tasks that became ready after it",
};

/**
 * Return the rows of a queue to show, with their indices: the first two, and the tasks that another device waits for.
 */
export function shownRows(queue: DeviceQueue, others: readonly DeviceQueue[], most: number): [task: number, index: number][] {
  const rows = queue.ready.map((task, index): [number, number] => [task, index]);
  const wanted = new Set(others.flatMap(({ waitsFor }) => waitsFor));
  return rows.filter(([task, index]) => index < most || wanted.has(task));
}
