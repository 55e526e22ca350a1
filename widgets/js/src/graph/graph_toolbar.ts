/** The strip below the graph: the legend of its signs, and the buttons for the camera and the export. */

import { el, svg } from "../dom.ts";
import { creationOf } from "../model/creation.ts";
import { recomputeMarks, signsOf } from "../model/recompute.ts";
import type { ShownState } from "../model/replay.ts";
import type { Store } from "../store.ts";
import { grouped } from "../format.ts";
import { glyph, icon, recomputeSign } from "../views/icons.ts";
import { SIGN_WORDS } from "./draw_recompute_badges.ts";
import type { Reach } from "./upstream_downstream.ts";

export interface StripActions {
  zoom(factor: number): void;
  /** Open all boxes, or close all. */
  fold(all: boolean): void;

  save(kind: "svg" | "png", what: "seen" | "whole"): void;
}

const ZOOM_STEP = 1.4;
const GROUPS = "Products that could run as one (M)";
const CREATED = "Colour tasks by time of creation: earlier is lighter (N)";
const NOT_CREATED = "Times of creation are unknown: no ts.capture(), a tape, or an old file";
const NO_GROUPS = "Groups of products are unknown: they were not searched while their factors were in memory";

export class Strip {
  readonly element: HTMLElement;
  private readonly follow: HTMLButtonElement;
  private readonly fit: HTMLButtonElement;
  private readonly groups: HTMLButtonElement;
  private readonly created: HTMLButtonElement;
  private readonly planned = sample("planned");
  private readonly reach = el("span", { class: "reach", hidden: "hidden" });
  /** Legend of the recompute signs; empty without recomputation. */
  private readonly signs = el("span", { class: "signs" });
  private signed = "";

  constructor(
    private readonly store: Store,
    actions: StripActions,
  ) {
    this.follow = button("follow", "Follow the running task (G)", icon("follow"), () =>
      store.update({ camera: "follow" }),
    );
    this.fit = button("fit", "Initial view, folded until it fits (F)", icon("fit"), () => store.update({ camera: "fit" }));
    const shut = button("fold all", "Fold all (⇧[)", icon("fold"), () => actions.fold(true));
    const open = button("unfold all", "Unfold all (⇧])", icon("unfold"), () => actions.fold(false));
    const out = button("zoom out", "Zoom out", sign("M4 8h8"), () => actions.zoom(1 / ZOOM_STEP));
    const closer = button("zoom in", "Zoom in", sign("M4 8h8M8 4v8"), () => actions.zoom(ZOOM_STEP));
    this.groups = button("groups", "", icon("groups"), () => store.canGroup && store.showGroups());
    this.created = button("colour by creation", creationOf(store.graph) ? CREATED : NOT_CREATED, icon("created"), () => store.colourByCreation());
    this.created.setAttribute("aria-disabled", String(!creationOf(store.graph)));
    const tools = el("div", { class: "tools" }, this.groups, this.created, out, closer, this.follow, shut, open, this.fit, exportMenu(actions));
    this.element = el("div", { class: "key" }, legend(this.planned), this.signs, this.reach, tools);
  }

  private showSigns(): void {
    const shown = signsOf(recomputeMarks(this.store.replay).values());
    this.signs.hidden = !shown.length;
    if (this.signed === shown.join()) return;
    this.signed = shown.join();
    this.signs.replaceChildren(...shown.map((sign) => el("span", { "data-sign": sign }, recomputeSign(sign), SIGN_WORDS[sign])));
    this.element.classList.toggle("signed", shown.length > 0);
  }

  update(reach: Reach | null): void {
    const { camera } = this.store.state;
    this.follow.setAttribute("aria-pressed", String(camera === "follow"));
    this.fit.setAttribute("aria-pressed", String(camera === "fit"));
    this.created.setAttribute("aria-pressed", String(this.store.state.byCreation));
    const { canGroup } = this.store;
    this.groups.setAttribute("aria-pressed", String(this.store.state.groups !== "off"));
    this.groups.setAttribute("aria-disabled", String(!canGroup));
    this.groups.title = canGroup ? GROUPS : NO_GROUPS;
    this.planned.hidden = !(this.store.isAhead || this.store.isSimulated);
    this.showSigns();
    this.reach.hidden = reach === null;
    this.element.classList.toggle("reaching", reach !== null);
    if (!reach) return;
    const { upstream, downstream } = reach;
    this.reach.replaceChildren(
      line("var(--ink2)", 1.4), `${grouped(upstream)} upstream`,
      line("var(--ink3)", 1.4, "4 3"), `${grouped(downstream)} downstream`,
    );
  }
}

function legend(planned: HTMLElement): HTMLElement {
  const states = (["waiting", "ready", "running", "done"] as const).map(sample);
  return el("span", { class: "states" }, ...states, planned, el("span", {}, line("var(--buffer)", 2.4), "gradient waits"));
}

function sample(state: ShownState): HTMLElement {
  return el("span", {}, el("span", { class: "sample" }, glyph(state, 12, state === "ready" ? "1" : "")), state);
}

function line(stroke: string, width: number, dash = ""): SVGSVGElement {
  const made = svg("svg", { width: 16, height: 8, "aria-hidden": "true" });
  const path = svg("path", { d: "M0 4h16", stroke, "stroke-width": width });
  if (dash) path.setAttribute("stroke-dasharray", dash);
  made.append(path);
  return made;
}

function sign(lines: string): SVGSVGElement {
  const made = svg("svg", { width: 16, height: 16, viewBox: "0 0 16 16", fill: "none", "aria-hidden": "true" });
  made.append(svg("path", { d: lines, stroke: "currentColor", "stroke-width": 1.5, "stroke-linecap": "round" }));
  return made;
}

function button(name: string, title: string, picture: SVGElement, act: () => void): HTMLButtonElement {
  const made = el("button", { class: "ib", type: "button", title, "aria-label": name }, picture);
  made.addEventListener("click", act);
  return made;
}

const CHOICES = [
  ["svg", "seen", "SVG of the visible part"],
  ["svg", "whole", "SVG of the whole graph"],
  ["png", "seen", "PNG of the visible part"],
  ["png", "whole", "PNG of the whole graph"],
] as const;

/** Create a button with a menu: arrow keys move in it; Escape and clicks elsewhere close it. */
function exportMenu(actions: StripActions): HTMLElement {
  const items = CHOICES.map(([kind, what, title]) => {
    const item = el("button", { type: "button", role: "menuitem", tabindex: "-1", "data-save": `${kind} ${what}` }, title);
    item.addEventListener("click", () => {
      show(false);
      actions.save(kind, what);
    });
    return item;
  });
  const menu = el("div", { class: "menu", role: "menu", "aria-label": "save the picture", hidden: "hidden" }, ...items);
  const opener = button("save the picture", "Save the picture", sign("M8 2.5v7.5M4.8 7 8 10.2 11.2 7M3 13.2h10"), () =>
    show(menu.hidden !== false),
  );
  opener.setAttribute("aria-haspopup", "menu");
  opener.setAttribute("aria-expanded", "false");
  const holder = el("div", { class: "save" }, opener, menu);
  const show = (open: boolean) => {
    menu.hidden = !open;
    opener.setAttribute("aria-expanded", String(open));
    (open ? items[0] : opener).focus();
  };
  holder.addEventListener("focusout", (event) => {
    if (holder.contains(event.relatedTarget as Node | null)) return;
    menu.hidden = true;
    opener.setAttribute("aria-expanded", "false");
  });
  holder.addEventListener("keydown", (event) => {
    if (menu.hidden) return;
    const at = items.indexOf(event.target as HTMLButtonElement);
    const moves: Record<string, number> = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 };
    if (event.key === "Escape") show(false);
    else if (event.key in moves) items[(moves[event.key] + items.length) % items.length].focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return holder;
}
