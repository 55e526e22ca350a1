/** A slider over recompute plans, with the curve, the costs, the modules and the storages of the chosen plan. */

import { el } from "../dom.ts";
import { followAround } from "../page_theme.ts";
import { fitPaper } from "../views/print.ts";
import { drawCurve, lineColour } from "./memory_curve.ts";
import type { Frontier, Plan } from "./frontier_data.ts";
import { put } from "./svg_elements.ts";
import { drawPrice } from "./cost_chart.ts";
import { addModules, addStorages } from "./tables.ts";

/** Show the plans stored as JSON in `root`. */
export function showFrontier(root: HTMLElement): void {
  const content = root.querySelector('script[type="application/json"]');
  const data = JSON.parse(content?.textContent ?? "") as Frontier;
  const { plans } = data;
  const host = root.querySelector(".moving") as HTMLElement;
  let place = data.place;

  const top = put(host, "section");
  const figures = put(top, "div", { class: "figures" });
  const slider = addSlider(top, plans.length, place);
  const charts = put(put(host, "section"), "div", { class: "charts" });
  const left = put(charts, "div");
  const right = put(charts, "div");
  put(left, "h3", {}, "Memory of the backward", el("span", {}, "predicted"));
  addKey(left, data);
  const curve = put(left, "div");
  const readout = put(left, "p", { class: "told" });
  put(right, "h3", {}, "Cost of each plan", el("span", {}, "peak, and time of a step"));
  const price = put(right, "div");
  const said = put(host, "section", { class: "said" });
  const below = [addModules(host), addStorages(host, data)];

  const drawCharts = () => {
    drawCurve(curve, data, place, (text) => (readout.textContent = text));
    drawPrice(price, data, place, (chosen) => {
      slider.value = String(chosen);
      move();
    });
  };
  const show = () => {
    const plan = plans[place];
    showFigures(figures, plan);
    slider.setAttribute("aria-valuetext", plan.sentences[0]);
    said.textContent = "";
    for (const sentence of [...plan.sentences, ...data.notes]) put(said, "p", {}, sentence);
    for (const each of below) each(plan);
    drawCharts();
  };
  function move(): void {
    place = Number(slider.value);
    readout.textContent = "";
    show();
  }
  slider.addEventListener("input", move);
  const theme = followAround(root);
  root.querySelector("header")?.append(theme);
  fitPaper(root);
  root.dataset.ready = "";
  show();
  let wide = root.clientWidth;
  new ResizeObserver(() => {
    if (root.clientWidth === wide) return;
    wide = root.clientWidth;
    drawCharts();
  }).observe(root);
}

function addSlider(host: Element, plans: number, place: number): HTMLInputElement {
  const budget = put(host, "label", { class: "budget" });
  put(budget, "span", {}, "nothing dropped");
  const slider = put(budget, "input", {
    type: "range",
    min: "0",
    max: String(plans - 1),
    step: "1",
    value: String(place),
    "aria-label": "budget: choose a plan",
    "data-lm-suppress-shortcuts": "true", // otherwise JupyterLab handles its arrow keys
  });
  put(budget, "span", {}, "lowest peak");
  slider.disabled = plans === 1;
  return slider;
}

function addKey(host: Element, data: Frontier): void {
  const key = put(host, "div", { class: "key" });
  const entry = (style: string, text: string, kind = "") => {
    const one = put(key, "span");
    put(one, "i", { class: kind, style });
    one.append(text);
  };
  const line = (colour: string, how: string) => `border-top-style:${how};border-color:var(--${colour})`;
  entry(line("ink3", "solid"), "without");
  entry(line("accent", "solid"), "with this plan");
  data.measured.forEach((each, number) => entry(line(lineColour(number), "dashed"), each.name));
  entry("background:var(--accent)", "bytes recomputed", "box");
}

function showFigures(host: Element, plan: Plan): void {
  host.textContent = "";
  for (const [text, value] of plan.figures) {
    const one = put(host, "div");
    put(one, "b", {}, value);
    put(one, "span", {}, text);
  }
}
