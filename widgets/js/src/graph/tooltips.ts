/** Texts about tasks and boxes for tooltips and the list for screen readers. */

import type { PlacedBox, PlacedStub } from "../layout/layout_types.ts";
import { createdAt, createdWords, creationRange } from "../model/creation.ts";
import { markSays } from "../model/recompute.ts";
import type { Outline } from "../model/outlines.ts";
import type { Unreal } from "../model/task_timing_words.ts";
import type { Store } from "../store.ts";
import { count, grouped, size } from "../format.ts";
import { pathOf, titleOf } from "./draw_box.ts";
import { layerState } from "./draw_layers.ts";
import { creationOfCards } from "./creation_shade.ts";
import { cardText } from "./draw_folded.ts";
import { type WireState, wireState } from "./draw_wires.ts";
import { type Facts, shareOf, stateOf } from "./frame_state.ts";
import type { Spot, Wire } from "./scene_types.ts";

const STUBS: Record<PlacedStub["kind"], string> = {
  parameter: "further use of",
  to: "also goes to",
  from: "also comes from",
};
/**
 * Additions to states that hold only at the shown position: not reached by the live session yet, or under another
 * policy.
 */
const UNREAL: Record<Unreal, string> = { planned: ", as planned", simulated: ", as simulated", failed: "" };
/** Maximum number of tasks named in a tooltip. */
const MOST_NAMED = 6;
/** Maximum length of a name in a tooltip. */
const LONGEST = 160;

export function tipOfSpot(store: Store, facts: Facts, spot: Spot): string {
  const { graph } = store;
  const names = spot.tasks.slice(0, MOST_NAMED).map((task) => cut(graph.parameter(task) || graph.name(task)));
  if (spot.tasks.length > MOST_NAMED) names.push(`and ${spot.tasks.length - MOST_NAMED} more`);
  if (spot.stub) return `${STUBS[spot.stub]} ${names.join(", ")}`;
  const { task } = spot;
  const place = graph.leaf[task] ? graph.name(task) : cut(graph.module(task)) || cut(graph.document.title);
  const said = [place, stateInWords(facts, spot), `${size(graph.bufferBytes[task])} in`];
  const line = graph.line(task);
  const created = createdAt(graph, task) < 0 ? [] : [createdWords(graph, task)];
  const groups = groupsOf(facts, task).map(({ name, title }) => `group ${name}: ${title}`);
  const mark = facts.marks.get(task);
  const marks = markSays(mark ? [mark] : []);
  return [names.join("\n"), said.join(" · "), ...(line ? [line] : []), ...created, ...marks, ...groups].join("\n");
}

export function tipOfBox(facts: Facts, placed: PlacedBox): string {
  const { box, closed } = placed;
  const name = cut(pathOf(facts, placed) || titleOf(facts, placed));
  const kind = box.subtitle ? ` (${cut(box.subtitle)})` : "";
  const index = facts.scene.boxes.get(box.id) as number;
  const said = closed ? cardText(facts, index) : count(box.size, "task");
  const marks = markSays(facts.cardMarks.get(index) ?? []);
  const { first, last } = creationOfCards(facts.scene);
  if (closed && first[index] >= 0) marks.unshift(creationRange(facts.scene.graph, first[index], last[index]));
  return [`${closed ? "unfold" : "fold"} ${name}${kind}`, said, ...marks, ...hiddenMembers(facts, placed)].join("\n");
}

/** Return `group A: 3 of 4 members in layers not shown`; those members have no outline. */
function hiddenMembers({ grouping, scene }: Facts, { box: { layers } }: PlacedBox): string[] {
  if (!layers || !grouping) return [];
  const found = grouping.outlines.of(grouping.direction).flatMap(({ name, tasks }) => {
    const hidden = tasks.filter((task) => layers.layerOf(task) >= 0 && !scene.shows(task)).length;
    return name && hidden ? [`group ${name}: ${hidden} of ${count(tasks.length, "member")} in layers not shown`] : [];
  });
  if (found.length > MOST_NAMED) found.splice(MOST_NAMED, Infinity, `and ${found.length - MOST_NAMED} more groups`);
  return found;
}

/** Return `blocks.2 of 4 equal layers, runs`. */
export function tipOfLayer(facts: Facts, { box }: PlacedBox, layer: number): string {
  const { layers } = box;
  const course = facts.courseOf(box);
  if (!layers || !course) return "";
  const state = layerState(course, layer, facts.t, facts.replay.running(facts.t));
  const isPinned = facts.layers.get(box.id) === layer;
  const which = layers.titles[layer] === layers.titles[layer && layer - 1] || layers.count === 1 ? `, ${grouped(layer)}` : "";
  const said = `${cut(layers.titles[layer])}${which}: ${LAYER_STATES[state]}`;
  return `${isPinned ? "unpin" : "show"} ${said}\none of ${count(layers.count, "equal layer")}`;
}

const LAYER_STATES = { waiting: "waits", begun: "started", running: "runs", done: "done" } as const;

const WIRES: Record<WireState, string> = {
  "not yet": "not computed yet",
  out: "computed by the running task",
  waits: "waits",
  into: "read by the running task",
  consumed: "consumed",
};

/** Return `Addmm, 47th → T, 48th` and `1.0 MiB, waits`. */
export function tipOfWire(store: Store, facts: Facts, wire: Wire, bytes: Float64Array): string {
  const { graph } = store;
  const { task, next } = graph.document.edges;
  const now = wireState(wire.edges, graph, facts.replay, facts.t);
  const state = WIRES[now] + (now === wireState(wire.edges, graph, facts.replay, facts.ran) ? "" : unreal(facts));
  const sum = size(wire.edges.reduce((total, edge) => total + bytes[edge], 0));
  if (wire.edges.length > 1) return `${count(wire.edges.length, "gradient")}\n${sum} in all, ${state}`;
  const [edge] = wire.edges;
  const name = (end: number) => (graph.leaf[end] ? graph.parameter(end) : facts.replay.named(end));
  return `${cut(name(task[edge]))} → ${cut(name(next[edge]))}\n${sum}, ${state}`;
}

function unreal(facts: Facts): string {
  return facts.unreal === null ? "" : UNREAL[facts.unreal];
}

/** Return `waiting, 1 of 2 inputs have arrived${planned}`; `ready, place 3 in the queue`. */
export function stateInWords(facts: Facts, spot: Spot): string {
  const state = stateOf(facts, spot);
  const place = facts.queuePlaces.get(spot.task);
  const planned = unreal(facts);
  if (state === "running") return state + planned;
  if (state === "ready") return (place ? `ready, place ${place} in the queue` : state) + planned;
  const waits = facts.scene.graph.waits[spot.task];
  if (state === "waiting" && waits > 1) {
    return `waiting, ${Math.round(shareOf(facts, spot.task) * waits)} of ${waits} inputs have arrived${planned}`;
  }
  return state;
}

/** Return `AddmmBackward0 in blocks.1.f2, waiting`. */
export function nameOfSpot(store: Store, facts: Facts, spot: Spot): string {
  const { graph } = store;
  const place = cut(graph.parameter(spot.task) || graph.module(spot.task) || graph.document.title);
  const mark = facts.breakpoints.get(spot.task);
  const breakpoint = mark === undefined ? "" : mark ? ", breakpoint" : ", disabled breakpoint";
  const groups = groupsOf(facts, spot.task).map(({ name }) => `, group ${name}`).join("");
  const recomputed = facts.marks.get(spot.task);
  const marks = recomputed ? `, ${markSays([recomputed]).join(", ")}` : "";
  return `${cut(graph.name(spot.task))} in ${place}, ${stateInWords(facts, spot)}${marks}${breakpoint}${groups}`;
}

/** Return the outlined groups that contain a task. */
function groupsOf({ grouping }: Facts, task: number): Outline[] {
  if (!grouping) return [];
  const { outlines, direction } = grouping;
  return outlines.around(task).filter((outline) => outline.name && outline.direction === direction);
}

export function nameOfBox(facts: Facts, placed: PlacedBox): string {
  const { box, closed } = placed;
  const name = [cut(pathOf(facts, placed) || titleOf(facts, placed)), cut(box.subtitle)].filter(Boolean).join(", ");
  const index = facts.scene.boxes.get(box.id) as number;
  const said = closed ? cardText(facts, index) : count(box.size, "task");
  return [name, said, ...hiddenMembers(facts, placed)].join(", ");
}

function cut(text: string): string {
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
}
