/** The training page: picture, findings, the selected cell, and keyboard navigation. */

import { el, svg } from "../dom.ts";
import { grouped } from "../format.ts";
import { followAround } from "../page_theme.ts";
import { icon, mark } from "../views/icons.ts";
import { fitPaper } from "../views/print.ts";
import { readLoop, said, titleOf } from "./loop_data.ts";
import style from "./loop.css";
import type { Frame } from "./drawing.ts";
import { cellAt, draw, drawChosen, frameOf } from "./draw_loop.ts";
import { variesIn } from "./draw_memory.ts";
import { findingsOf, showBackward, showCell, stepTime } from "./side_panel.ts";
import { State } from "./state.ts";
import { pooled, type Measure } from "./heat_map.ts";

const MEASURES: Measure[] = ["gradient norm", "update ratio"];
const KEYS: [string, string][] = [
  ["← →", "previous, next column; ten with ⇧"],
  ["↑ ↓", "previous, next module"],
  ["Home End", "first step, last step"],
  ["N P", "next, previous finding"],
  ["+ −", "fewer steps, more steps, all steps; the wheel zooms, ⇧ wheel moves"],
  ["[ ]", "fold, unfold modules"],
  ["U", "gradient norm, or update ratio"],
  ["↵", "open the selected step's backward, or show how"],
  ["?", "show these keys"],
];

/** Show the training run whose JSON is in `root`. */
export function showLoop(root: HTMLElement): void {
  const content = root.querySelector('script[type="application/json"]');
  const loop = readLoop(content?.textContent ?? "", root.dataset.title ?? "Training loop");
  const host = root.querySelector(".moving") as HTMLElement;
  const shadow = host.attachShadow({ mode: "open" }); // keeps out a notebook's style sheet
  const theme = followAround(root);
  root.dataset.ready = "";
  shadow.append(el("style", {}, style), new Page(root, new State(loop), theme).root);
  fitPaper(root);
}

class Page {
  readonly root: HTMLElement;
  private readonly base = el("canvas", { "aria-hidden": "true" });
  private readonly above = el("canvas", { "aria-hidden": "true" });
  private readonly picture: HTMLElement;
  private readonly where = el("span", { class: "where" });
  private readonly tabs: HTMLElement[];
  private readonly cell = el("section", { class: "cell" });
  private readonly backward = el("section", { class: "backward" });
  private readonly tip = el("div", { class: "tip", role: "presentation" });
  private readonly aloud = el("div", { class: "aloud", "aria-live": "polite" });
  private readonly help = el("section", { class: "help" }, el("h2", {}, "Keys"));
  private readonly findings: { root: HTMLElement; mark: () => void };
  private frame: Frame = frameOf(900, 600);
  private chosen = "";
  private drawRequested = false;
  private begun = false;
  /** Number of steps with sampled memory, and whether it differs between them. */
  private readonly looks: number;
  private readonly varies: boolean;

  constructor(
    private readonly outside: HTMLElement,
    private readonly state: State,
    theme: HTMLElement,
  ) {
    const { loop } = state;
    this.looks = loop.looks.length / 2;
    this.varies = variesIn(loop);
    this.findings = findingsOf(state, (finding) => this.change(() => state.choose(finding)));
    this.tabs = MEASURES.map((measure) => {
      const made = el("button", { type: "button" }, measure);
      made.addEventListener("click", () => this.change(() => state.show(measure)));
      return made;
    });
    const size = `${grouped(loop.modules.length)} modules, ${grouped(loop.steps)} steps`;
    const bar = el(
      "header",
      {},
      mark(),
      el("b", { class: "title" }, loop.title),
      this.where,
      el("div", { class: "tabs", role: "group", "aria-label": "quantity of the heat map" }, ...this.tabs),
      el("span", { class: "size" }, size),
      el("div", { class: "tools" }, ...this.tools(), theme),
    );
    const label = "Losses, learning rates and a heat map of norms by module and step. Arrow keys select a cell.";
    this.picture = el(
      "div",
      { class: "picture", tabindex: "0", role: "application", "aria-label": label, "data-lm-suppress-shortcuts": "true" },
      this.base,
      this.above,
      this.tip,
    );
    for (const [key, text] of KEYS) this.help.append(el("div", { class: "fact" }, el("kbd", {}, key), el("span", {}, text)));
    this.help.hidden = true;
    if (!loop.steps && !loop.rows.length) {
      const texts = loop.sentences.slice(1).map((text) => el("p", {}, text));
      const found = loop.findings.length ? [this.findings.root] : [];
      this.root = el("div", { class: "frame without" }, el("header", {}, mark(), el("b", { class: "title" }, loop.title), el("div", { class: "tools" }, theme)), el("div", { class: "nothing" }, ...texts, ...found));
      return;
    }
    const side = el("aside", {}, this.help, this.findings.root, ...(loop.step_time ? [stepTime(loop.step_time)] : []), this.cell, this.backward);
    this.root = el("div", { class: "frame" }, bar, this.picture, side, this.aloud);
    this.listen();
  }

  private tools(): HTMLElement[] {
    const { state } = this;
    const sign = (d: string) => svg("svg", { width: 16, height: 16, "aria-hidden": "true" }, svg("path", { d }));
    const tools: [Node | string, string, () => void][] = [
      [sign("m4 10 4-4 4 4"), "Previous finding (P)", () => state.chooseBy(-1)],
      [sign("m4 6 4 4 4-4"), "Next finding (N)", () => state.chooseBy(1)],
      [sign("M4 8h8"), "More steps (−)", () => state.zoom(2, state.step)],
      [sign("M4 8h8M8 4v8"), "Fewer steps (+)", () => state.zoom(0.5, state.step)],
      [icon("fit"), "All steps (0)", () => state.view(0, state.end)],
      [icon("fold"), "Fold modules ([)", () => state.foldBy(-1)],
      [icon("unfold"), "Unfold modules (])", () => state.foldBy(1)],
      ["?", "Keys (?)", () => (this.help.hidden = !this.help.hidden)],
    ];
    return tools.map(([sign, title, act]) => {
      const made = el("button", { type: "button", title, "aria-label": title }, sign);
      made.addEventListener("click", () => this.change(act));
      return made;
    });
  }

  private listen(): void {
    const { picture, state } = this;
    picture.addEventListener("pointerdown", (event) => this.drag(event));
    picture.addEventListener("pointermove", (event) => this.hover(event));
    picture.addEventListener("pointerleave", () => this.tip.classList.remove("on"));
    picture.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.root.addEventListener("keydown", (event) => this.key(event));
    this.backward.addEventListener("click", (event) => {
      const { step, open } = ((event.target as HTMLElement).closest("button") ?? (event.target as HTMLElement)).dataset;
      if (step !== undefined) this.change(() => state.go(Number(step)));
      if (open !== undefined) this.open(Number(open));
    });
    new ResizeObserver(() => this.resize()).observe(picture);
    const again = () => this.ask();
    new MutationObserver(again).observe(this.outside, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  }

  private resize(): void {
    const { clientWidth, clientHeight } = this.picture;
    if (!clientWidth || !clientHeight) return;
    this.divide(this.begun ? this.state.lines.length : this.state.loop.modules.length);
    if (!this.begun) {
      this.begun = true;
      this.state.begin();
      if (!document.activeElement || document.activeElement === document.body) {
        if (document.querySelectorAll(".ts-loop").length === 1 && !document.body.dataset.jpThemeLight) {
          this.picture.focus({ preventScroll: true });
        }
      }
    }
    this.show();
  }

  /** Divide the height between a heat map of this many lines and the parts above and below it. */
  private divide(lines: number): void {
    const { state, picture } = this;
    this.frame = frameOf(picture.clientWidth, picture.clientHeight, this.looks, lines, this.varies);
    state.width = picture.clientWidth - this.frame.left - this.frame.right;
    if (state.height === this.frame.heatHeight) return;
    state.height = this.frame.heatHeight;
    state.reveal();
  }

  /** Change the state, and update the page. */
  private change(act: () => void): void {
    act();
    this.ask();
  }

  private ask(): void {
    if (this.drawRequested) return;
    this.drawRequested = true;
    requestAnimationFrame(() => this.show());
  }

  private show(): void {
    this.drawRequested = false;
    const { state } = this;
    this.divide(state.lines.length); // the folding depth changes it
    const { frame } = this;
    draw(this.base, this.outside, state, frame);
    drawChosen(this.above, this.outside, state, frame);
    this.where.textContent = "";
    this.where.append("step ", el("b", {}, grouped(state.step)), ` (0–${grouped(state.end - 1)})`);
    MEASURES.forEach((measure, at) => this.tabs[at].setAttribute("aria-pressed", String(measure === state.measure)));
    this.findings.mark();
    const line = state.lines[state.line];
    const chosen = `${state.step} ${state.measure} ${state.depth} ${line?.name}`;
    if (chosen === this.chosen) return; // zoomed or scrolled
    this.chosen = chosen;
    showCell(this.cell, state);
    showBackward(this.backward, state, this.opens, (text) => this.copy(text));
    const facts = [...this.cell.querySelectorAll(".fact")].slice(0, 2).map((fact) => fact.textContent);
    if (line) this.aloud.textContent = `step ${state.step}, ${titleOf(state.loop, line.name)}: ${facts.join(", ")}`;
  }

  private hover(event: PointerEvent): void {
    const { state, frame } = this;
    const box = this.picture.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const found = cellAt(state, frame, px, py);
    this.tip.classList.toggle("on", found !== null);
    if (!found) return;
    const { columns } = state;
    const first = Math.max(0, columns.first + found.column * columns.size);
    const last = Math.min(state.end, first + columns.size) - 1;
    const steps = last > first ? `steps ${grouped(first)}–${grouped(last)}` : `step ${grouped(first)}`;
    const line = state.lines[found.line];
    if (line) {
      const one = { first, size: columns.size, count: 1 };
      const [value] = pooled(state.numbers, [line], one);
      const taken = state.isMeasured(first, last) ? said(value) : `not measured; ${said(value)} before`;
      this.tip.textContent = `${titleOf(state.loop, line.name)}, ${steps}: ${taken}`;
    } else this.tip.textContent = steps;
    const wide = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(4, Math.min(box.width - wide - 4, px + 12))}px`;
    this.tip.style.top = `${py > box.height - 50 ? py - 30 : py + 14}px`;
  }

  /** Select a cell by a click, or the cells under the pointer while dragging. */
  private drag(event: PointerEvent): void {
    if (event.button !== 0) return;
    const { state, frame, picture } = this;
    this.root.classList.remove("keys");
    picture.focus({ preventScroll: true });
    const choose = (from: PointerEvent) => {
      const box = picture.getBoundingClientRect();
      const found = cellAt(state, frame, from.clientX - box.left, from.clientY - box.top);
      if (found) this.change(() => state.goCell(found.column, found.line < 0 ? state.line : found.line));
    };
    choose(event);
    picture.setPointerCapture(event.pointerId);
    picture.addEventListener("pointermove", choose);
    const over = () => picture.removeEventListener("pointermove", choose);
    for (const end of ["pointerup", "pointercancel"]) picture.addEventListener(end, over, { once: true });
  }

  private wheel(event: WheelEvent): void {
    const { state, frame, picture } = this;
    if (event.ctrlKey || event.metaKey) return; // the browser's own zoom
    const box = picture.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const wide = state.to - state.from;
    if (px < frame.left || px > box.width - frame.right) {
      if (py < frame.heatTop || state.room >= state.lines.length) return; // the page scrolls
      event.preventDefault();
      return this.change(() => state.scroll(Math.sign(event.deltaY) * 3));
    }
    event.preventDefault();
    const along = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    const about = state.from + ((px - frame.left) / state.width) * wide;
    this.change(() => {
      if (Math.abs(along) > (event.shiftKey ? 0 : Math.abs(event.deltaY))) state.pan((along / state.width) * wide);
      else state.zoom(1.0015 ** event.deltaY, about);
    });
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    this.root.classList.add("keys");
    const target = event.target as HTMLElement;
    if (event.key === "Enter" && target.tagName === "BUTTON") return;
    const { state } = this;
    const by = event.shiftKey ? 10 : 1;
    const keys: Record<string, () => void> = {
      ArrowLeft: () => state.move(-by),
      ArrowRight: () => state.move(by),
      ArrowUp: () => state.goLine(state.line - by),
      ArrowDown: () => state.goLine(state.line + by),
      Home: () => state.go(0),
      End: () => state.go(state.end - 1),
      n: () => state.chooseBy(1),
      p: () => state.chooseBy(-1),
      "+": () => state.zoom(0.5, state.step + 0.5),
      "=": () => state.zoom(0.5, state.step + 0.5),
      "-": () => state.zoom(2, state.step + 0.5),
      "0": () => state.view(0, state.end),
      "[": () => state.foldBy(-1),
      "]": () => state.foldBy(1),
      u: () => state.show(MEASURES[1 - MEASURES.indexOf(state.measure)]),
      "?": () => (this.help.hidden = !this.help.hidden),
      Escape: () => (this.help.hidden = true),
      Enter: () => (this.opens ? this.open(state.step) : this.backward.querySelector("button")?.focus()),
    };
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    this.change(act);
  }

  /** True if a kernel can open the selected step's backward. */
  private get opens(): boolean {
    return (this.outside.dataset.live ?? "").split(" ").includes(String(this.state.step));
  }

  private open(step: number): void {
    this.aloud.textContent = `Opens the backward of step ${step}`;
    this.outside.dispatchEvent(new CustomEvent("tapescope-open", { detail: step }));
  }

  private copy(text: string): void {
    const done = () => (this.aloud.textContent = `Copied: ${text}`);
    navigator.clipboard?.writeText(text).then(done, () => {}); // the text can also be selected by hand
  }
}
