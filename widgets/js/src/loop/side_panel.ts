/** The panel beside the picture: findings, the selected cell, and how to open its backward. */

import { el, svg } from "../dom.ts";
import { grouped, nanoseconds, number, size } from "../format.ts";
import { ABSENT, BASELINE, isBad, NO_SCALAR, rowAt, said, titleOf, type Finding, type StepTime } from "./loop_data.ts";
import { baselineOf, sum } from "./draw_memory.ts";
import { type State } from "./state.ts";
import { worst, type Numbers } from "./heat_map.ts";

const FEW = 3; // findings that are shown without a list that scrolls
const GRAVE = new Set(["non-finite", "leak", "silent write", "second backward"]);

function steps({ step, last_step: last }: Finding): string {
  return last === null || last === step ? `step ${grouped(step)}` : `steps ${grouped(step)}–${grouped(last)}`;
}

/** Return the sign of a finding, distinguished by its shape: a triangle, or a square for kept memory. */
function sign(finding: Finding): Element {
  const kept = finding.kind === "black box";
  const path = kept ? "M3 3.5h10v9H3zM3 6.5h10" : "M8 2.6 14 13H2zM8 6.6v3M8 11.2v.1";
  const attributes = { width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true" };
  const made = svg("svg", attributes, svg("path", { d: path }));
  made.setAttribute("class", kept ? "kept" : GRAVE.has(finding.kind) ? "bad" : "warn");
  return made;
}

/** Return a leak's sentence in parts, with the holder on its own line; null for other findings and other sentences. */
function leak({ kind, sentence, tensor, alike }: Finding): HTMLElement[] | null {
  const at = kind === "leak" && tensor ? sentence.indexOf(tensor) : -1;
  if (at < 0 || !tensor) return null;
  const more = ` and ${grouped((alike ?? 1) - 1)} more like it`;
  const rest = sentence.slice(at + tensor.length);
  const isFolded = rest.startsWith(more);
  const parts = [el("small", {}, sentence.slice(0, at).trimEnd()), el("code", {}, tensor)];
  if (isFolded) parts.push(el("small", { class: "more" }, more.trimStart()));
  return [...parts, el("small", {}, (isFolded ? rest.slice(more.length) : rest).replace(/^[.,]? /, ""))];
}

/** Create the list of findings. `choose` receives the index of a clicked finding. */
export function findingsOf(state: State, choose: (finding: number) => void): { root: HTMLElement; mark: () => void } {
  const { findings, sentences } = state.loop;
  const list = el("div", { class: "findings" });
  const buttons = findings.map((finding, number) => {
    const kind = `${finding.kind[0].toUpperCase()}${finding.kind.slice(1)}${finding.certain ? "" : ", likely"}`;
    const made = el(
      "button",
      { class: "finding", type: "button", "aria-pressed": "false" },
      sign(finding),
      el("b", {}, kind),
      el("span", { class: "when" }, steps(finding)),
      ...(leak(finding) ?? [el("small", {}, finding.sentence)]),
    );
    made.addEventListener("click", () => choose(number));
    list.append(made);
    return made;
  });
  if (!findings.length) list.append(el("p", {}, "No findings."));
  for (const note of sentences.slice(1)) list.append(el("p", { class: "soft" }, note));
  const count = findings.length ? `${grouped(findings.length)}, N selects the next` : "";
  const root = el("section", { class: findings.length > FEW ? "all" : "few" }, el("h2", {}, "Findings", el("span", {}, count)), list);
  const mark = () =>
    buttons.forEach((button, number) => {
      const on = number === state.finding;
      if ((button.getAttribute("aria-pressed") === "true") === on) return;
      button.setAttribute("aria-pressed", String(on));
      // scrollIntoView would also scroll a notebook's page
      if (on) list.scrollTop = button.offsetTop - list.offsetTop - Math.max(0, (list.clientHeight - button.offsetHeight) / 2);
    });
  return { root, mark };
}

/** Show the mean time of a step: a bar with one part for each phase, and the phases with their shares. */
export function stepTime(time: StepTime): HTMLElement {
  const phases = Object.entries(time.seconds).filter(([, seconds]) => seconds > 0);
  const total = sum(phases.map(([, seconds]) => seconds)) || 1;
  const samples = time.samples_per_second;
  const rate = samples === null ? "" : ` · ${samples < 100 ? number(samples) : grouped(Math.round(samples))} samples/s`;
  const bar = el("div", { class: "phases", "aria-hidden": "true" });
  const names = el("p", { class: "phase-names" });
  for (const [phase, seconds] of phases) {
    bar.append(el("i", { class: phase, style: `flex-grow: ${seconds / total}` }));
    names.append(el("span", {}, el("i", { class: phase }), `${phase} ${Math.round((100 * seconds) / total)} %`));
  }
  return el("section", {}, el("h2", {}, "Time of a step", el("span", {}, `${nanoseconds(1e9 * total)}${rate}`)), bar, names);
}

function row(host: HTMLElement, name: string, value: string, kind = ""): void {
  host.append(el("div", { class: "fact" }, el("span", {}, name), el("b", { class: kind }, value)));
}

/** Show the values of the selected step and module. */
export function showCell(host: HTMLElement, state: State): void {
  host.textContent = "";
  const { loop, step, numbers } = state;
  const line = state.lines[state.line];
  if (!line) return void host.append(el("p", {}, "No step was measured."));
  const name = titleOf(loop, line.name);
  const many = line.modules.length > 1 ? `, the largest of ${line.modules.length} modules` : "";
  host.append(el("h3", {}, `step ${grouped(step)} · ${name}`));
  const at = rowIn(loop.rows, step);
  const gradient = at < 0 ? ABSENT : worst({ spans: loop.rows, values: loop.gradients, width: loop.modules.length }, at, line.modules);
  if (at >= 0 && loop.rows[2 * at] !== loop.rows[2 * at + 1]) {
    row(host, "pooled", `steps ${grouped(loop.rows[2 * at])}–${grouped(loop.rows[2 * at + 1])}, the largest`);
  }
  row(host, `gradient norm${many}`, said(gradient), isBad(gradient) ? "bad" : "");
  const usual = state.usual(line);
  const value = state.row < 0 || state.sampledAt !== null ? ABSENT : worst(numbers, state.row, line.modules);
  const times = Number.isFinite(value) && value > 0 && value / usual >= 2 ? `, now ${said(Number((value / usual).toPrecision(2)))} ×` : "";
  row(host, `median ${state.measure}`, Number.isNaN(usual) ? "none" : `${said(usual)}${times}`);
  updates(host, state, line.modules);
  const [losses, rates] = [loop.losses, loop.learning_rates].map((values) =>
    loop.optimizers.map((_, each) => (at < 0 ? NO_SCALAR : values[at * loop.optimizers.length + each])),
  );
  loop.optimizers.forEach((optimizer, each) => {
    const of = loop.optimizers.length > 1 ? `, ${optimizer}` : "";
    row(host, `loss${of}`, said(losses[each]), losses[each] !== NO_SCALAR && isBad(losses[each]) ? "bad" : "");
    row(host, `learning rate${of}`, said(rates[each]));
  });
  if (at >= 0 && loop.skipped.has(at)) row(host, "update", "none: the gradient scaler skipped the step");
  host.append(spark(numbers, line.modules, state));
  baseline(host, state);
}

/** Show the memory that existed before the step, or before the last one in which it was counted. */
function baseline(host: HTMLElement, { loop, step }: State): void {
  const at = rowAt(loop.baseline_steps, step);
  if (at < 0) return;
  const [first, last] = loop.baseline_steps.slice(2 * at, 2 * at + 2);
  const bytes = baselineOf(loop, at);
  const exact = (count: number) => `${size(count)} (${grouped(count)} B)`;
  const when = `step ${grouped(first)}${last > first ? ` to ${grouped(last)}, the most` : ""}`;
  const folded = el("details", {}, el("summary", {}, `Memory before ${when}: `, el("b", {}, size(sum(bytes)))));
  BASELINE.forEach((kind, place) => row(folded, kind, exact(bytes[place])));
  row(folded, "in all", exact(sum(bytes)));
  folded.open = host.dataset.baseline === "open";
  folded.addEventListener("toggle", () => (host.dataset.baseline = folded.open ? "open" : ""));
  host.append(folded);
}

/** Return the row that contains a step, or -1. */
function rowIn(spans: readonly number[], step: number): number {
  const found = rowAt(spans, step);
  return found >= 0 && spans[2 * found + 1] >= step ? found : -1;
}

/** Show weight and update norms, which are sampled every few steps: those of the last sample. */
function updates(host: HTMLElement, { loop, step }: State, modules: readonly number[]): void {
  const sample = rowAt(loop.samples, step);
  if (sample < 0) return;
  const width = loop.modules.length;
  const at = loop.samples[2 * sample + 1] >= step ? "" : `, step ${grouped(loop.samples[2 * sample])}`;
  const read = (values: Float32Array) => worst({ spans: loop.samples, values, width }, sample, modules);
  const [weight, update] = [read(loop.weights), read(loop.updates)];
  row(host, `weight norm${at}`, said(weight), isBad(weight) ? "bad" : "");
  row(host, `update norm${at}`, said(update), isBad(update) ? "bad" : "");
  if (modules.length === 1 && weight > 0 && update >= 0) row(host, `update ÷ weight${at}`, said(update / weight));
}

const WIDE = 320;
const TALL = 36;

/** Return a small curve of the line's values over all steps. */
function spark(numbers: Numbers, modules: readonly number[], state: State): Element {
  const rows = numbers.spans.length / 2;
  const size = Math.max(1, Math.ceil(rows / WIDE));
  const points: [number, number][] = [];
  const bad: number[] = [];
  for (let start = 0; start < rows; start += size) {
    let highest = ABSENT;
    for (let each = start; each < Math.min(rows, start + size); each++) {
      const value = worst(numbers, each, modules);
      if (isBad(value)) bad.push(numbers.spans[2 * each]);
      else if (value > highest) highest = value;
    }
    if (highest > 0) points.push([numbers.spans[2 * start], Math.log10(highest)]);
  }
  const [low, high] = points.reduce(([l, h], [, value]) => [Math.min(l, value), Math.max(h, value)], [Infinity, -Infinity]);
  const x = (step: number) => (((step + 0.5) / state.end) * WIDE).toFixed(1);
  const y = (value: number) => (TALL - 4 - ((value - low) / (high - low || 1)) * (TALL - 8)).toFixed(1);
  const made = svg("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" });
  const d = points.map(([step, value], at) => `${at ? "L" : "M"}${x(step)},${y(value)}`).join("");
  made.append(svg("path", { d, class: "line" }));
  for (const step of bad.slice(0, 200)) made.append(svg("path", { d: `M${x(step)},2V${TALL - 2}`, class: "bad" }));
  made.append(svg("path", { d: `M${x(state.step)},0V${TALL}`, class: "now" }));
  return made;
}

/** Show how to open the step's backward if the black box recorded it, and otherwise how to record it. */
export function showBackward(host: HTMLElement, state: State, opens: boolean, copied: (text: string) => void): void {
  host.textContent = "";
  const { loop, step } = state;
  const folder = loop.kept.get(step);
  host.append(el("h2", {}, `The backward of step ${grouped(step)}`));
  if (opens) host.append(el("button", { class: "go", type: "button", "data-open": String(step) }, `Open the backward of step ${grouped(step)} `, el("kbd", {}, "↵")));
  if (folder !== undefined) {
    host.append(el("p", {}, opens ? "Or in a terminal:" : "The black box recorded it. To replay it in a terminal and see what was wrong:"));
    command(host, `tapescope replay ${shell(folder)} SCRIPT.py:make_model SCRIPT.py:loss_of`, copied);
    if (opens) return;
    host.append(el("p", {}, "In a notebook, as a deck:"));
    command(host, `ts.replay(${JSON.stringify(folder)}, make_model, loss_of).debug()`, copied);
    return;
  }
  if (opens) return void host.append(el("p", {}, "It was recorded, with its memory."));
  const nearest = [...loop.kept.keys()].sort((one, other) => Math.abs(one - step) - Math.abs(other - step))[0];
  const why = loop.black_box
    ? "It was not recorded: the black box records bad steps, and only the first of several in a row."
    : "It was not recorded: this loop ran without a black box.";
  host.append(el("p", {}, why));
  if (nearest !== undefined) {
    const go = el("button", { class: "plain", type: "button", "data-step": String(nearest) }, `Go to step ${grouped(nearest)}, which was recorded`);
    host.append(go);
  } else if (!loop.black_box) {
    host.append(el("p", {}, "To record bad steps:"));
    command(host, 'ts.training(model, optimizer, black_box="black_box")', copied);
    host.append(el("p", {}, "Or, for an unchanged script:"));
    command(host, "tapescope run --black-box black_box SCRIPT.py", copied);
  }
}

/** Quote a folder's name as one word of a shell command. */
export function shell(text: string): string {
  return /^[\w./+:@%,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

function command(host: HTMLElement, text: string, copied: (text: string) => void): void {
  const button = el("button", { class: "copy", type: "button", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", () => copied(text));
  host.append(el("div", { class: "command" }, el("code", {}, text), button));
}
