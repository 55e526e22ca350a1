/** Memory over the backward: a stack by category, the peak, other policies as thin lines, and the playhead. */

import { bindScrubbing, drawCursor, drawTaskNumbers, hasRun, readAxis, type TimeAxis, x } from "../charts/axis.ts";
import { drawPeak, drawPeaks, peakWords, type PolicyPeak, type Rectangle } from "../charts/peaks.ts";
import { ABOVE, BELOW, type DrawnStack, drawStack, heightOf, type StackPicture } from "../charts/stack.ts";
import { fit } from "../charts/surface.ts";
import { el } from "../dom.ts";
import { CURVES, curvesOf, levelsOfCurve } from "../model/curves.ts";
import { CATEGORIES, type Curve, type Memory } from "../model/document.ts";
import { levelsOfMemory, type MemoryLevels } from "../model/memory.ts";
import { hasMoved, type Store } from "../store.ts";
import { nth, size } from "../text.ts";
import type { Colours, MakeView, Stage } from "../view.ts";
import { dashes } from "./dashes.ts";
import { basisWords, chartWords, makeLegend } from "./memory_legend.ts";
import { shown as policyTitle } from "./policy_tabs.ts";
import { makePredict } from "./predict.ts";

/** Below this width of the left gutter the legend's names are short. */
const WIDE_LEGEND = 170;

/** Changes after which the legend reads other numbers. */
const READ_AFTER = ["t", "hoveredT", "tab", "revision"] as const;

/** What the still picture depends on; it is drawn anew when one of these is another. */
interface Subject {
  memories: (Memory | null)[];
  curves: Curve[] | undefined;
  tab: number;
  ownScale: boolean;
  colours: Colours;
  width: number;
  height: number;
  ratio: number;
}

export const makeMemory: MakeView = (stage, parent) => {
  const { store } = stage;
  const heading = el("span", { class: "sub" });
  const scale = el("button", { class: "sm", title: "Scale of memory: to the highest of all policies, or to this one (Y)" });
  const held = el("span", { class: "held" });
  const legend = makeLegend();
  const note = el("p", { class: "unknown" });
  const still = el("div", { class: "still", "aria-hidden": "true" });
  const canvas = el("canvas", { role: "img" });
  const wrap = el("div", { class: "memwrap" }, still, canvas, legend.element, note);
  const head = el("div", { class: "head" }, el("h3", {}, "Memory"), heading, held, scale);
  const view = el("section", { class: "strip memory", "aria-label": "memory" }, head, wrap);
  parent.append(view);
  const predict = makePredict(stage, head);

  let subject: Subject | null = null;
  let picture: StackPicture | null = null;
  let drawn: DrawnStack | null = null;
  let words: Rectangle | null = null;
  scale.addEventListener("click", () => store.update({ ownScale: !store.state.ownScale }));
  bindScrubbing(canvas, stage, () => picture?.axis ?? null);
  bindSentence(canvas, stage, wrap, () => words);

  const clear = () => {
    drawn?.dispose();
    drawn = null;
    picture = null;
    words = null;
  };
  const rebuild = (wanted: Subject) => {
    clear();
    subject = wanted;
    if (!store.memory || !wanted.width) return;
    picture = pictureOf(store, wanted, readAxis(view, wanted.width, store.replay.length));
    legend.build(usedCategories(store), picture.curves, picture.axis.left < WIDE_LEGEND);
    read(store, legend);
    drawn = drawStack(still, picture);
  };
  const describe = () => {
    const { memory, memory_note: reason } = store.replay.schedule;
    wrap.classList.toggle("without", !memory);
    note.textContent = memory ? "" : sentence(reason || "The memory of this order is not known");
    title(heading, store);
    scale.textContent = store.state.ownScale ? "scale: this policy" : "scale: all policies";
    scale.setAttribute("aria-pressed", String(store.state.ownScale));
    scale.hidden = !memory || store.schedules.filter((each) => each.memory).length < 2;
    const curves = curvesOf(store.replay.schedule).map(levelsOfCurve);
    const words = memory ? chartWords(levelsOfMemory(memory), saidPeak(memory).join(""), curves) : "";
    canvas.setAttribute("aria-label", words);
  };
  return {
    update(changed) {
      predict.update(changed);
      if (changed.has("tab") || changed.has("revision") || changed.has("ownScale")) describe();
      if (changed.has("history")) showHistory(held, store);
      if (READ_AFTER.some((name) => changed.has(name))) read(store, legend);
      return hasMoved(changed) || changed.has("hoveredT") || changed.has("ownScale");
    },
    draw() {
      const wanted = subjectOf(stage, wrap);
      if (!isSame(subject, wanted)) rebuild(wanted);
      const context = fit(canvas, wanted.width, wanted.height);
      if (picture && drawn && store.memory) words = drawMoving(context, stage, picture, drawn, store.memory);
      return false;
    },
    dispose() {
      clear();
      view.remove();
    },
  };
};

function subjectOf({ store, colours }: Stage, wrap: HTMLElement): Subject {
  return {
    memories: store.schedules.map((each) => each.memory),
    curves: store.replay.schedule.curves,
    tab: store.state.tab,
    ownScale: store.state.ownScale,
    colours,
    width: wrap.clientWidth,
    height: wrap.clientHeight,
    ratio: devicePixelRatio,
  };
}

function isSame(one: Subject | null, other: Subject): boolean {
  return (
    one !== null &&
    (["curves", "tab", "ownScale", "colours", "width", "height", "ratio"] as const).every((key) => one[key] === other[key]) &&
    one.memories.length === other.memories.length &&
    one.memories.every((memory, index) => memory === other.memories[index])
  );
}

function pictureOf(store: Store, subject: Subject, axis: TimeAxis): StackPicture {
  const shown = levelsOfMemory(store.memory!);
  const patterns = dashes(store.schedules.map((each) => each.policy));
  const others = store.schedules.flatMap(({ memory }, tab) =>
    memory && tab !== subject.tab ? [{ levels: levelsOfMemory(memory), dash: patterns[tab] }] : [],
  );
  const curves = curvesOf(store.replay.schedule).map(levelsOfCurve);
  const peaks = subject.ownScale ? [] : others.map(({ levels }) => levels.peak.bytes);
  const most = Math.max(shown.peak.bytes, ...curves.map(({ peak }) => peak), ...peaks);
  return { axis, width: subject.width, height: subject.height, shown, others, curves, most, colours: subject.colours };
}

/** The categories that have bytes under any policy. */
function usedCategories(store: Store): number[] {
  const all = store.schedules.flatMap(({ memory }) => (memory ? [levelsOfMemory(memory)] : []));
  return CATEGORIES.flatMap((_, category) => (all.some((levels) => levels.used[category]) ? [category] : []));
}

function read(store: Store, legend: ReturnType<typeof makeLegend>): void {
  if (!store.memory) return;
  const levels: MemoryLevels = levelsOfMemory(store.memory);
  const { hoveredT, t } = store.state;
  legend.read(levels, Math.min(hoveredT ?? t, levels.places), hoveredT !== null);
}

/** The rule, what the numbers rest on, and how to read them. */
function title(heading: HTMLElement, store: Store): void {
  const { memory, title } = store.replay.schedule;
  if (!memory) {
    heading.textContent = title;
    heading.title = "";
    return;
  }
  const { said, reasons } = basisWords(levelsOfMemory(memory), store.replay.schedule.curves !== undefined);
  const reading = store.isSimulated ? "simulated: faint, it has not run" : "solid has run, faint is to come";
  heading.replaceChildren(el("span", { class: "rule" }, `${title} · `), `${said} · ${reading}`);
  heading.title = reasons;
}

/** What going back costs. */
function showHistory(held: HTMLElement, { state: { history } }: Store): void {
  held.hidden = !history;
  if (!history) return;
  const { bytes, gradient_bytes: gradients, saved_bytes: saved, reach } = history;
  held.textContent = `history holds ${size(bytes)}`;
  const back = reach ? `the ${nth(reach + 1)} task` : "the start";
  held.title = `To go back, as far as ${back}, it keeps\ngradients: ${size(gradients)}\nsaved tensors: ${size(saved)}`;
}

function sentence(text: string): string {
  const first = `${text[0].toUpperCase()}${text.slice(1)}`;
  return /[.!?…]$/.test(first) ? first : `${first}.`;
}

function saidPeak(memory: Memory): [string, string] {
  const levels = levelsOfMemory(memory);
  return peakWords(levels.peak.bytes, levels.peak.place, levels.places, memory.peak);
}

/** What changes from frame to frame, over the still picture. Returns where the peak's sentence is. */
function drawMoving(
  context: CanvasRenderingContext2D,
  { store, colours }: Stage,
  picture: StackPicture,
  drawn: DrawnStack,
  memory: Memory,
): Rectangle {
  const { axis, width, height, shown } = picture;
  const bottom = height - BELOW;
  drawSolid(context, drawn.solid, x(axis, Math.min(hasRun(store), axis.places)), height);
  drawPeaks(context, axis, policyPeaks(store, picture), colours, { top: ABOVE, bottom: bottom - 2, width });
  drawCursor(context, axis, store.state, colours, ABOVE - 1, bottom);
  drawTaskNumbers(context, axis, Math.min(store.state.t, axis.places), colours, bottom + 3);
  const y = heightOf(picture, shown.peak.bytes);
  return drawPeak(context, axis, { time: shown.peak.time, y, words: saidPeak(memory) }, colours);
}

/** What has run, up to a pixel. */
function drawSolid(context: CanvasRenderingContext2D, solid: HTMLCanvasElement, until: number, height: number): void {
  const across = Math.min(solid.width, Math.round(until * devicePixelRatio));
  if (across < 1 || !solid.height) return;
  const width = across / devicePixelRatio;
  context.drawImage(solid, 0, 0, across, solid.height, 0, 0, width, height);
}

function policyPeaks(store: Store, picture: StackPicture): PolicyPeak[] {
  const patterns = dashes(store.schedules.map((each) => each.policy));
  const peaks: PolicyPeak[] = store.schedules.flatMap(({ policy, memory }, tab) => {
    if (!memory) return [];
    const { bytes } = levelsOfMemory(memory).peak;
    const isShown = tab === store.state.tab;
    return [{ title: policyTitle(policy), bytes, dash: patterns[tab], shown: isShown, y: heightOf(picture, bytes) }];
  });
  for (const { curve: { name }, peak: bytes } of picture.curves) {
    const { name: title, short } = CURVES[name];
    peaks.push({ title, short, bytes, dash: [], shown: false, curve: name, y: heightOf(picture, bytes) });
  }
  return peaks;
}

/** The peak's whole sentence as a tooltip, where the chart has room for its beginning alone. */
function bindSentence(canvas: HTMLElement, stage: Stage, host: HTMLElement, words: () => Rectangle | null): void {
  const { store } = stage;
  canvas.addEventListener("pointermove", (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    const [across, down] = [event.clientX - left, event.clientY - top];
    const place = words();
    const isOver =
      place !== null &&
      Math.abs(across - place.left - place.width / 2) <= place.width / 2 &&
      Math.abs(down - place.top - place.height / 2) <= place.height / 2;
    stage.tip(isOver && store.memory ? saidPeak(store.memory).join("") : null, host, across, down);
  });
  canvas.addEventListener("pointerleave", () => stage.tip(null));
}
