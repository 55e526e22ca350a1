/**
 * Drawing of the wires. They are inconspicuous unless a gradient waits on them, a task at an end runs, or the user
 * selects them.
 */

import type { Rect } from "../layout/layout_types.ts";
import type { DeckGraph } from "../model/graph.ts";
import type { Replay } from "../model/replay.ts";
import type { Colours } from "../view_types.ts";
import { type Facts } from "./frame_state.ts";
import { touch } from "./spatial_index.ts";
import type { Paint, Pen } from "./pen.ts";
import { DOWNSTREAM, UPSTREAM } from "./upstream_downstream.ts";
import type { Scene } from "./scene.ts";
import type { Wire } from "./scene_types.ts";

/** States, in drawing order. */
const STATES = ["consumed", "not yet", "waits", "out", "into"] as const;
export type WireState = (typeof STATES)[number];

/** Minimum width of a wire on the screen, pixels. */
const THINNEST = 0.7;
/** Bytes from which on a gradient widens its wire. */
const WIDENS_FROM = 2 ** 17;
/** Length on the screen below which a wire is not drawn, pixels. */
const SHORTEST = 2;
/** Scales below which wires have no rounded corners, if there are few wires and if there are many. */
const ROUNDED_FROM = { few: 0.1, many: 0.3 };
const MANY = 4000;
const NARROWEST_WAIT = 1.4;
const MOST_WIDENED = 1.6;
/** Opacity of wires that neither match nor are reached. */
const FADED = 0.3;

/** Return the state of a wire: the most active one of its edges. */
export function wireState(edges: readonly number[], graph: DeckGraph, replay: Replay, t: number): WireState {
  const { task, next } = graph.document.edges;
  const { place, length } = replay;
  let open = false;
  let waits = false;
  let out = false;
  for (const edge of edges) {
    const from = place[task[edge]];
    const to = place[next[edge]];
    if (to === t && t < length) return "into";
    if (from === t && t < length) out = true;
    else if (from < t && to >= t) waits = true;
    else if (to >= t) open = true;
  }
  return out ? "out" : waits ? "waits" : open ? "not yet" : "consumed";
}

/** Return the bytes of the gradient on each edge. */
export function edgeBytes(graph: DeckGraph): Float64Array {
  const { edges, forms, metas, tasks } = graph.document;
  return Float64Array.from(edges.next, (next, edge) => {
    const meta = forms[tasks.takes[next]]?.[edges.input[edge]];
    return meta === undefined ? 0 : (metas[meta]?.bytes ?? 0);
  });
}

export interface WireView {
  /** Visible part of the picture. */
  area: Rect;
  scale: number;
  /** Opacity from 0 to 1 while the layout changes. */
  shown: number;
  bytes: Float64Array;
}

export function drawWires(pen: Pen, colours: Colours, facts: Facts, view: WireView): void {
  const { scene, replay, t } = facts;
  const byState: Record<WireState, number[]> = { consumed: [], "not yet": [], waits: [], out: [], into: [] };
  const shortest = SHORTEST / view.scale;
  scene.wires.forEach(({ bounds, edges }, index) => {
    if (bounds.width + bounds.height < shortest || !touch(bounds, view.area)) return;
    byState[wireState(edges, scene.graph, replay, t)].push(index);
  });
  for (const state of STATES) {
    if (isStraight(scene, view.scale)) drawFarWires(pen, colours, facts, view, byState[state], state);
    else for (const index of byState[state]) drawWire(pen, colours, facts, view, index, state);
  }
  drawReached(pen, colours, facts, view, [...byState.consumed, ...byState["not yet"]]);
  drawHovered(pen, colours, facts, view);
  pen.alpha = 1;
}

function drawWire(pen: Pen, colours: Colours, facts: Facts, view: WireView, index: number, state: WireState): void {
  const wire = facts.scene.wires[index];
  const { stroke, width, alpha } = look(colours, wire, state, view.bytes);
  pen.alpha = alpha * view.shown * (isFaded(facts, index) ? FADED : 1);
  pen.outline(wire.outline, { stroke, width: width * Math.max(1, THINNEST / view.scale) });
}

/**
 * Return whether wires are drawn straight. It depends on the whole graph, so that a part drawn anew matches the rest.
 */
function isStraight({ wires }: Scene, scale: number): boolean {
  return scale < (wires.length > MANY ? ROUNDED_FROM.many : ROUNDED_FROM.few);
}

function isFaded({ wireReach, fades }: Facts, index: number): boolean {
  return wireReach ? !wireReach[index] : fades;
}

/** Draw wires at a small scale; those that look alike share a path. */
function drawFarWires(
  pen: Pen,
  colours: Colours,
  facts: Facts,
  view: WireView,
  indices: readonly number[],
  state: WireState,
): void {
  const alike = new Map<number, { look: ReturnType<typeof look>; faded: boolean; lines: number[][] }>();
  for (const index of indices) {
    const wire = facts.scene.wires[index];
    const looks = look(colours, wire, state, view.bytes);
    const faded = isFaded(facts, index);
    const key = Math.round(looks.width * 10) * 4 + (faded ? 2 : 0) + (wire.fan ? 1 : 0);
    const group = alike.get(key);
    if (group) group.lines.push(wire.points);
    else alike.set(key, { look: looks, faded, lines: [wire.points] });
  }
  for (const { look: { stroke, width, alpha }, faded, lines } of alike.values()) {
    pen.alpha = alpha * view.shown * (faded ? FADED : 1);
    pen.polylines(lines, { stroke, width: width * Math.max(1, THINNEST / view.scale) });
  }
}

function look(colours: Colours, wire: Wire, state: WireState, bytes: Float64Array) {
  if (state === "consumed") return { stroke: colours.line, width: 1, alpha: 1 };
  if (state === "not yet") return { stroke: colours.line2, width: 1, alpha: wire.fan ? 0.4 : 0.8 };
  if (state === "waits") return { stroke: colours.buffer, width: widthOfWait(wire, bytes), alpha: 1 };
  return { stroke: colours.accent, width: wire.fan ? 1 : 1.5, alpha: state === "out" ? 0.65 : 1 };
}

/** Return the width of a waiting gradient's wire: 1.4 to 3 px depending on the bytes; 1 px in a fan. */
function widthOfWait(wire: Wire, bytes: Float64Array): number {
  if (wire.fan) return 1;
  let most = 0;
  for (const edge of wire.edges) most = Math.max(most, bytes[edge]);
  return NARROWEST_WAIT + Math.min(MOST_WIDENED, Math.log2(1 + most / WIDENS_FROM) * 0.4);
}

/** Draw wires upstream with a full line and downstream with a dashed one. */
function drawReached(pen: Pen, colours: Colours, facts: Facts, view: WireView, quiet: readonly number[]): void {
  const { wireReach, scene } = facts;
  if (!wireReach) return;
  const width = Math.max(1.1, THINNEST / view.scale);
  const up: Paint = { stroke: colours.ink2, width };
  const down: Paint = { stroke: colours.ink3, width, dash: [4 * width, 3 * width] };
  pen.alpha = view.shown;
  for (const index of quiet) {
    if (wireReach[index] & UPSTREAM) pen.outline(scene.wires[index].outline, up);
    else if (wireReach[index] & DOWNSTREAM) pen.outline(scene.wires[index].outline, down);
  }
}

/** Draw the wire under the pointer, on a rim that sets it off from its neighbours, or the wires of the task there. */
function drawHovered(pen: Pen, colours: Colours, facts: Facts, view: WireView): void {
  const { hoveredWire: wire } = facts;
  pen.alpha = view.shown;
  const paint = { stroke: colours.ink, width: Math.max(1.4, THINNEST / view.scale) };
  if (wire) {
    pen.outline(wire.outline, { stroke: colours.panel, width: 4 * paint.width });
    pen.outline(wire.outline, paint);
  }
  for (const task of wire ? [] : facts.hovered) {
    for (const index of facts.scene.wiresAt(task)) pen.outline(facts.scene.wires[index].outline, paint);
  }
}
