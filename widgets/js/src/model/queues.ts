/** The ready queues of a schedule: one, or one for each device. */

import { countBelow } from "../binary_search.ts";
import type { Times } from "./task_times.ts";
import type { DeckGraph } from "./graph.ts";
import { NEVER, type Replay } from "./replay.ts";

/** The queue of one device at a position. Tasks are in the order in which they are going to run. */
export interface DeviceQueue {
  /** As `tasks.device` has it. */
  device: number;
  name: string;
  /** The ready tasks besides the running one, the first of them. */
  ready: number[];
  /** How many there are. */
  count: number;
  /** The task at the position, if it is this device's; else -1. */
  running: number;
  /** Its next task that is not running; -1 where all have run. */
  next: number;
  /** Which of another device's ready or running tasks it waits for, where none of its own is ready. */
  waitsFor: number[];
  /** How many of its tasks have run. */
  ran: number;
  /** How many it has. */
  all: number;
}

/** The devices that have a queue each, the CPU first, then by name; none where there is one queue. */
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

/** So many tasks are looked at for what a device waits for. */
const MOST = 20_000;

const known = new WeakMap<Replay, Map<number, { places: Int32Array; counts: Int32Array }>>();

/** The queue of a device at position `t`, of its ready tasks the first `most`. */
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

/** The task that a device has begun before the one at `t` starts, and not ended; `left`: nanoseconds. null: there is none. */
export function deviceBusy(replay: Replay, device: number, t: number, times: Times): { task: number; left: number } | null {
  const { places } = placesOf(replay, device);
  const last = places[countBelow(places, t) - 1];
  if (last === undefined || t >= replay.length) return null;
  const left = times.end[last] - times.start[t];
  return left > 0 ? { task: replay.schedule.order[last], left } : null;
}

/** The places of a device's tasks, and by position how many of them are ready, the running one included. */
function placesOf(replay: Replay, device: number): { places: Int32Array; counts: Int32Array } {
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

/** The tasks that are ready or running, and lead to this one. */
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

/** `ToCopy, which alone lets cuda:0 start, waits behind tasks created later`; "" where no other device waits for it. */
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
  dfs: "tasks that got ready after it",
};

/** Of a queue's rows that are shown: the first two, and what another device waits for, with their places in it. */
export function shownRows(queue: DeviceQueue, others: readonly DeviceQueue[], most: number): [task: number, index: number][] {
  const rows = queue.ready.map((task, index): [number, number] => [task, index]);
  const wanted = new Set(others.flatMap(({ waitsFor }) => waitsFor));
  return rows.filter(([task, index]) => index < most || wanted.has(task));
}
