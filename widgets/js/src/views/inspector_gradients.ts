/** A task's input and output gradients: shape, bytes, statistics and histogram. */

import { el } from "../dom.ts";
import type { Gradient } from "../model/document.ts";
import type { Decades } from "../model/histogram.ts";
import type { Store } from "../store.ts";
import { count, grouped, number, shape, size } from "../format.ts";
import { histogram } from "./histogram.ts";
import { icon } from "./icons.ts";

/** Maximum number of listed gradients; a large stack has thousands of outputs. */
const MOST = 20;
const RECORD_THEM = 'trace="full" of ts.profile, ts.backward or ts.debug records values and histograms';

export function gradientSections(store: Store, task: number): HTMLElement[] {
  const { graph, replay, state } = store;
  const stands = replay.state(task, state.t);
  const isHere = stands !== "waiting";
  const note = isHere ? `input buffer ${size(graph.bufferBytes[task])}` : "expected";
  const arriving = items(store, task, "inputs", inputMetas(store, task), isHere);
  const first = section("Gradients in", note, arriving);
  if (lacksValues(store, task)) first.append(el("div", { class: "gr not" }, el("div", { class: "s" }, RECORD_THEM)));
  const sections = [first];
  if (isHere && store.record(task)?.edited) {
    first.dataset.edited = "true";
    first.querySelector("h4")?.append(el("b", { class: "chip", title: "Edited by hand" }, "edited"));
  }
  if (graph.leaf[task]) return sections;
  const outputs = outputMetas(store, task, store.record(task)?.outputs.length ?? 0);
  const edges = graph.outEdges.starts[task + 1] - graph.outEdges.starts[task];
  const leaving = items(store, task, "outputs", outputs, stands === "done");
  sections.push(section("Gradients out", count(edges, "edge"), leaving));
  return sections;
}

/** Return whether the task has run and another run could record more of it. A whole step records no values. */
function lacksValues(store: Store, task: number): boolean {
  const { replay, state, branch } = store;
  if (branch || replay.place[task] >= state.front || replay.schedule.memory?.step) return false;
  const record = store.record(task);
  return !record || record.inputs.some((each) => each && each.min === undefined && each.why === undefined);
}

/** Return one element for each of a task's inputs or outputs, up to `MOST`. */
function items(
  store: Store,
  task: number,
  side: "inputs" | "outputs",
  metas: readonly (number | null)[],
  isComputed: boolean,
): HTMLElement[] {
  const name = side === "inputs" ? "in" : "out";
  const record = store.record(task);
  const found = isComputed ? record?.[side] : undefined;
  // All tasks share one scale, so that they can be compared.
  const { decades } = store;
  const otherwise = store.document.is_simulated
    ? "a simulation computes no values"
    : isComputed
      ? absent(store, task, side === "inputs")
      : "not computed yet";
  const shown = metas.slice(0, MOST).map((meta, at) =>
    item(store, `${name} ${at}`, meta, found?.[at], otherwise, decades),
  );
  if (metas.length > MOST) shown.push(el("div", { class: "gr not" }, `+${grouped(metas.length - MOST)} more`));
  return shown;
}

function section(title: string, note: string, shown: HTMLElement[]): HTMLElement {
  const part = title.toLowerCase().replaceAll(" ", "-");
  return el("div", { class: "sec", "data-part": part }, el("h4", {}, title, el("span", {}, note)), ...shown);
}

/** Return the metas of a task's inputs. */
function inputMetas({ document }: Store, task: number): (number | null)[] {
  return document.forms[document.tasks.takes[task]] ?? [];
}

/** Return the metas of a task's outputs; null for gradients that are not needed. */
function outputMetas({ graph, document }: Store, task: number, least: number): (number | null)[] {
  const { edges, forms, tasks } = document;
  const found: (number | null)[] = Array.from({ length: least }, () => null);
  const { starts, values } = graph.outEdges;
  for (let at = starts[task]; at < starts[task + 1]; at++) {
    const edge = values[at];
    while (found.length <= edges.output[edge]) found.push(null);
    found[edges.output[edge]] = forms[tasks.takes[edges.next[edge]]]?.[edges.input[edge]] ?? null;
  }
  return found;
}

/** Return the reason why a computed gradient has no record. */
function absent(store: Store, task: number, input: boolean): string {
  const { state } = store;
  if (store.branch) return "recorded on another branch";
  const place = store.replayOf(0).place[task];
  if (place < state.front) return "not recorded";
  const waits = input && store.replayOf(0).readyAt[task] <= state.front;
  return waits ? "not read yet" : "not computed yet";
}

/**
 * Return the element of a gradient. `gradient` is undefined if nothing is known (`otherwise` says why) and null if
 * there is none.
 */
function item(
  store: Store,
  name: string,
  meta: number | null,
  gradient: Gradient | null | undefined,
  otherwise: string,
  decades: Decades | null,
): HTMLElement {
  const { metas } = store.document;
  const found = gradient ? gradient.meta : meta;
  if (gradient === null || found === null) return without(name, "no gradient needed", "");
  const { shape: sizes, dtype, device, bytes } = metas[found];
  const what = el("span", { class: "sh", title: `${shape(sizes)} ${dtype} on ${device}` }, shape(sizes));
  if (dtype !== "float32") what.append(` ${dtype}`);
  const weight = bytes === null ? "" : size(bytes);
  if (gradient === undefined) return without(name, what, weight ? `${weight}, ${otherwise}` : otherwise);
  const line = el("div", { class: "a" }, el("b", {}, name), what, el("span", { class: "by" }, weight));
  const made = el("div", { class: "gr", "data-gradient": name }, line);
  if (gradient.why !== undefined) made.append(el("div", { class: "s" }, `no statistics: ${gradient.why}`));
  else made.append(...statistics(gradient, sizes));
  if (gradient.bins?.length && decades) made.append(histogram(gradient, decades));
  return made;
}

function without(name: string, what: HTMLElement | string, said: string): HTMLElement {
  const shown = typeof what === "string" ? el("span", { class: "sh" }, what) : what;
  const line = el("div", { class: "a" }, el("b", {}, name), shown, el("span", { class: "by" }, said));
  return el("div", { class: "gr not", "data-gradient": name }, line);
}

function statistics(gradient: Gradient, sizes: readonly number[] | null): HTMLElement[] {
  const lines: HTMLElement[] = [];
  const bad = [
    gradient.nan ? `${grouped(gradient.nan)} NaN` : "",
    gradient.inf ? `${grouped(gradient.inf)} Inf` : "",
  ].filter(Boolean);
  if (bad.length) lines.push(el("div", { class: "s bad", role: "note" }, icon("warning", 13), bad.join(", ")));
  if (gradient.min === null || gradient.min === undefined) {
    const none = sizes?.includes(0) ? "empty" : "its values were not recorded";
    lines.push(el("div", { class: "s" }, bad.length ? "no finite element" : none));
    return lines;
  }
  const words = (...parts: string[]) => el("div", { class: "s" }, ...parts.map((part) => el("span", {}, part)));
  lines.push(words(`norm ${number(gradient.norm)}`, `mean ${number(gradient.mean)}`));
  const total = sizes?.reduce((product, each) => product * each, 1) ?? 0;
  const least = number(gradient.min);
  const range = [gradient.min === gradient.max ? `all ${least}` : `${least} to ${number(gradient.max)}`];
  if (gradient.zero && total) range.push(`${percent(gradient.zero / total)} zero`);
  lines.push(words(...range));
  return lines;
}

/** Format a share, but never a small one as "0 %" or a large one as "100 %". */
function percent(share: number): string {
  if (share === 1) return "all";
  if (share < 0.01) return "< 1 %";
  return share > 0.99 ? "> 99 %" : `${Math.round(share * 100)} %`;
}
