"""What moves the slider of plans for mirroring: JavaScript that a page or a notebook's output runs as it is."""

SCRIPT = r"""
"use strict";
(() => {
const FATES = {d: ["let go", "accent"], w: ["made on the way", "buffer"], k: ["kept", "saved"],
  n: ["newly kept", "held"], "-": ["not needed", "line2"]};
const PANEL = 250, LEFT = 58, RIGHT = 12, TOP = 12, BOTTOM = 30;
function add(parent, name, attributes = {}, text) {
  const svg = parent.namespaceURI === "http://www.w3.org/2000/svg" || name === "svg";
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
/** As engine/words/sizes.py has it. */
function size(bytes) {
  let power = 0;
  while (power < 4 && Math.abs(bytes) >= (power ? 999.5 * 1024 ** power : 1024)) power += 1;
  const value = bytes / 1024 ** power, whole = power === 0 || (power === 1 && Number.isInteger(value));
  return `${whole ? Math.round(value) : value.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
function percent(share) { return `${Math.round(100 * share)} %`; }
/** Round sizes from 0 to the highest, some four of them. */
function ticks(highest) {
  const step = 2 ** Math.ceil(Math.log2(highest / 5)), found = [];
  for (let at = 0; at <= highest; at += step) found.push(at);
  return found;
}
function show(root) {
  const data = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const {plans} = data, host = root.querySelector(".moving");
  const plain = plans[0], highest = Math.max(...[...plans, ...data.measured].map(each => each.peak), 1);
  const most = Math.max(...plans.flatMap(each => each.replays.map(pair => pair[1])), 1);
  let place = data.place;

  const top = add(host, "section");
  const figures = add(top, "div", {class: "figures"});
  const budget = add(top, "label", {class: "budget"});
  add(budget, "span", {}, "nothing let go of");
  const slider = add(budget, "input", {type: "range", min: 0, max: plans.length - 1, step: 1, value: place,
    "aria-label": "budget: which plan", "data-lm-suppress-shortcuts": "true"});  // else JupyterLab takes its arrow keys
  add(budget, "span", {}, "lowest peak");
  if (plans.length === 1) slider.disabled = true;

  const charts = add(add(host, "section"), "div", {class: "charts"});
  const left = add(charts, "div"), right = add(charts, "div");
  const heading = add(left, "h3", {}, "Memory of the backward");
  add(heading, "span", {}, "predicted");
  const key = add(left, "div", {class: "key"});
  const entry = (colour, text, kind = "", line = "solid") => {
    const one = add(key, "span");
    const style = kind ? "background" : `border-top-style:${line};border-color`;
    add(one, "i", {class: kind, style: `${style}:var(--${colour})`});
    one.append(text);
  };
  entry("ink3", "without");
  entry("accent", "with this plan");
  const LINES = ["ink", "pgrad", "held", "work"];
  data.measured.forEach((each, number) => entry(LINES[number % LINES.length], each.name, "", "dashed"));
  entry("accent", "bytes made again", "box");
  const curve = add(left, "div"), told = add(left, "p", {class: "told"});
  add(add(right, "h3", {}, "What each plan costs"), "span", {}, "peak, and time of a step");
  const price = add(right, "div");

  const said = add(host, "section", {class: "said"});
  const modules = add(host, "section");
  add(modules, "h3", {}, "By module");
  const byModule = add(modules, "div", {class: "scroll"});
  const storages = add(host, "section");
  const title = add(storages, "h3", {}, "Storages of the forward");
  const whole = add(storages, "div", {class: "whole"}), wholeKey = add(storages, "div", {class: "key"});
  const table = add(add(storages, "div", {class: "scroll"}), "table");
  const head = add(add(table, "thead"), "tr");
  for (const [text, number] of [["size", 1], ["fate", 0], ["made by", 0], ["in", 0], ["takes", 1], ["", 0]]) {
    add(head, "th", number ? {class: "number"} : {}, text);
  }
  const body = add(table, "tbody");
  const rows = data.storages.map(([bytes, operation, module, takes, obstacle]) => {
    const row = add(body, "tr");
    add(row, "td", {class: "number"}, bytes);
    const fate = add(row, "td", {class: "fate"});
    for (const text of [operation, module]) add(row, "td", {}, text);
    add(row, "td", {class: "number"}, takes);
    add(row, "td", {}, obstacle);
    return {row, fate};
  });
  if (data.others > 0) add(title, "span", {}, `the ${rows.length} largest; ${data.others} smaller ones are not listed`);

  function drawCurve() {
    curve.textContent = "";
    const width = Math.max(curve.clientWidth, 200), plan = plans[place];
    const svg = add(curve, "svg", {height: PANEL, role: "img", "aria-label": plan.sentences[0]});
    const bins = plain.levels.length, scale = 1.08 * highest;
    const x = at => LEFT + (width - LEFT - RIGHT) * at / bins;
    const y = bytes => TOP + (PANEL - TOP - BOTTOM) * (1 - bytes / scale);
    for (const tick of ticks(scale)) {
      add(svg, "line", {x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick), stroke: "var(--line)"});
      add(svg, "text", {x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end"}, size(tick));
    }
    const path = each => {
      let line = `M${x(0)},${y(each.levels[0])}`;
      each.levels.forEach((level, at) => { line += `V${y(level).toFixed(1)}H${x(at + 1).toFixed(1)}`; });
      return `${line}V${y(each.end).toFixed(1)}`;
    };
    const line = (each, colour, wide, more = {}) =>
      add(svg, "path", {d: path(each), fill: "none", stroke: `var(--${colour})`, "stroke-width": wide,
        "stroke-linejoin": "round", ...more});
    add(svg, "path", {d: `${path(plan)}V${y(0)}H${x(0)}Z`, fill: "var(--accent)", opacity: .1});
    for (const [at, bytes] of plan.replays) {
      const tall = 3 + 25 * bytes / most, wide = Math.max(1.5, x(1) - x(0) - 1);
      add(svg, "rect", {x: x(at), y: y(0) - tall, width: wide, height: tall, fill: "var(--accent)", class: "again"});
    }
    line(plain, "ink3", 1.6, {class: "plain"});
    line(plan, "accent", 2.4, {class: "mirrored"});
    data.measured.forEach((each, number) =>
      line(each, LINES[number % LINES.length], 1.2, {"stroke-dasharray": "3 3", class: "measured"}));
    const ring = (each, colour) => {
      const at = each.levels.indexOf(Math.max(...each.levels)), where = x(at + .5);
      add(svg, "circle", {cx: where, cy: y(each.levels[at]), r: 3.5, fill: "var(--panel)", stroke: `var(--${colour})`,
        "stroke-width": 2});
      return where;
    };
    ring(plain, "ink3");
    if (place) {
      const where = ring(plan, "accent"), end = where > width - 110;
      add(svg, "text", {x: where + (end ? -8 : 8), y: y(plan.peak) - 6, class: "strong",
        "text-anchor": end ? "end" : "start", style: "paint-order:stroke;stroke:var(--panel);stroke-width:3px"},
        size(plan.peak));
    }
    add(svg, "text", {x: LEFT, y: PANEL - 4}, "0");
    add(svg, "text", {x: (LEFT + width - RIGHT) / 2, y: PANEL - 4, "text-anchor": "middle"},
      width < 360 ? "task" : "task, in the order in which they run");
    add(svg, "text", {x: width - RIGHT, y: PANEL - 4, "text-anchor": "end"}, String(data.tasks));
    const cursor = add(svg, "line", {y1: TOP, y2: y(0), stroke: "var(--ink3)", "stroke-dasharray": "2 2",
      visibility: "hidden"});
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect();
      const at = Math.floor((event.clientX - box.left - LEFT) / (width - LEFT - RIGHT) * bins);
      if (at < 0 || at >= bins) return;
      cursor.setAttribute("visibility", "visible");
      for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(at + .5));
      const again = plan.replays.find(pair => pair[0] === at);
      told.textContent = `${data.names[at]}${data.size > 1 ? ` and ${data.size - 1} more` : ""} · without ` +
        `${size(plain.levels[at])} · with this plan ${size(plan.levels[at])}` +
        data.measured.map(each => ` · ${each.name} ${size(each.levels[at])}`).join("") +
        (again ? ` · makes ${size(again[1])} again` : "");
    });
    svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); told.textContent = ""; });
  }
  function drawPrice() {
    price.textContent = "";
    const width = Math.max(price.clientWidth, 180), tall = PANEL + 21;
    const svg = add(price, "svg", {height: tall});
    const longest = 1.06 * Math.max(...plans.map(each => each.seconds), 1e-9);
    const x = seconds => 46 + (width - 60) * seconds / longest;
    const y = bytes => TOP + (tall - TOP - BOTTOM) * (1 - bytes / (1.08 * plain.peak));
    for (const share of [0, .25, .5, .75, 1]) {
      const at = y(share * plain.peak);
      add(svg, "line", {x1: 46, x2: width - 14, y1: at, y2: at, stroke: "var(--line)"});
      add(svg, "text", {x: 38, y: at + 4, "text-anchor": "end"}, percent(share));
    }
    add(svg, "polyline", {points: plans.map(each => `${x(each.seconds)},${y(each.peak)}`).join(" "), fill: "none",
      stroke: "var(--line2)", "stroke-width": 1.4});
    plans.forEach((each, number) => {
      const chosen = number === place;
      const dot = add(svg, "circle", {cx: x(each.seconds), cy: y(each.peak), r: chosen ? 6 : 4, class: "dot",
        fill: `var(--${chosen ? "accent" : "panel"})`, stroke: `var(--${chosen ? "accent" : "ink3"})`,
        "stroke-width": 1.6, style: "cursor:pointer"});
      add(dot, "title", {}, each.sentences.join("\n"));
      dot.addEventListener("click", () => { slider.value = number; move(); });
    });
    if (data.asked) {
      const asked = plans[data.asked];
      add(svg, "circle", {cx: x(asked.seconds), cy: y(asked.peak), r: 9, fill: "none", stroke: "var(--accent)",
        "pointer-events": "none"});
      add(svg, "text", {x: x(asked.seconds) - 13, y: y(asked.peak) + 16, "text-anchor": "end"}, "asked for");
    }
    add(svg, "text", {x: 46, y: tall - 4}, "0 ms");
    add(svg, "text", {x: width - 14, y: tall - 4, "text-anchor": "end"},
      `+${Number((1000 * longest / 1.06).toPrecision(2))} ms a step`);
  }
  function draw() {
    const plan = plans[place];
    figures.textContent = said.textContent = byModule.textContent = whole.textContent = wholeKey.textContent = "";
    for (const [text, value] of plan.figures) {
      const one = add(figures, "div");
      add(one, "b", {}, value);
      add(one, "span", {}, text);
    }
    slider.setAttribute("aria-valuetext", plan.sentences[0]);
    for (const sentence of [...plan.sentences, ...data.notes]) add(said, "p", {}, sentence);
    const [names, ...cells] = plan.cells;
    modules.hidden = !cells.length;
    const grid = add(byModule, "table"), first = add(add(grid, "thead"), "tr"), rest = add(grid, "tbody");
    const numbers = names.map(name => name !== "module" && name !== "operations");
    names.forEach((name, at) => add(first, "th", numbers[at] ? {class: "number"} : {}, name));
    for (const row of cells) {
      const line = add(rest, "tr");
      row.forEach((text, at) => add(line, "td", numbers[at] ? {class: "number"} : {}, text));
    }
    const held = ([fate]) => fate !== "w";  // what is only made on the way is held in neither backward
    const sum = plan.totals.filter(held).reduce((total, pair) => total + pair[1], 0) || 1;
    for (const [fate, bytes] of plan.totals) {
      if (!bytes) continue;
      const [text, colour] = FATES[fate];
      if (held([fate])) add(whole, "div", {style: `width:${100 * bytes / sum}%;background:var(--${colour})`});
      const one = add(wholeKey, "span");
      add(one, "i", {class: "box", style: `background:var(--${colour})`});
      one.append(`${text} ${size(bytes)}`);
    }
    rows.forEach(({row, fate}, number) => {
      const letter = plan.fates[number], [text, colour] = FATES[letter];
      fate.textContent = "";
      add(fate, "i", {style: `background:var(--${colour})`});
      fate.append(text);
      row.className = letter === "-" ? "soft" : "";
    });
    drawCurve();
    drawPrice();
  }
  function move() { place = Number(slider.value); told.textContent = ""; draw(); }
  slider.addEventListener("input", move);
  const {body: page} = document;
  const theme = () => {
    const lab = page.dataset.jpThemeLight, code = page.dataset.vscodeThemeKind;
    const dark = lab !== undefined ? lab === "false" : code !== undefined ? !code.includes("light") : undefined;
    if (dark !== undefined) root.dataset.theme = dark ? "dark" : "light";
  };
  new MutationObserver(theme).observe(page, {attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"]});
  theme();
  root.dataset.ready = "";
  draw();
  let wide = root.clientWidth;
  new ResizeObserver(() => {
    if (root.clientWidth === wide) return;
    wide = root.clientWidth;
    drawCurve();
    drawPrice();
  }).observe(root);
}
for (const root of document.querySelectorAll(".th-frontier:not([data-ready])")) show(root);
})();
"""
