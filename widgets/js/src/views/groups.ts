/**
 * The list below the graph while groups are outlined: the groups, their savings, and the refused ones with the reasons.
 */

import { el } from "../dom.ts";
import type { Direction } from "../model/document.ts";
import type { Outline } from "../model/outlines.ts";
import type { Store } from "../store.ts";
import { grouped, size } from "../format.ts";
import type { MakeView } from "../view_types.ts";
import { icon } from "./icons.ts";

const TITLES: Record<Direction, string> = { backward: "backward", forward: "forward", ran: "ran as one" };
/** Maximum number of listed groups. */
const MOST = 100;
/** Text until the kernel has searched. */
const LOOKS = "Searching for matrix products that could run as one …";

export const makeGroups: MakeView = ({ store, root }, parent) => {
  const choices = el("span", { class: "tabs", role: "group", "aria-label": "groups of" });
  const said = el("p", { role: "status" });
  const shut = el("button", { class: "ib", title: "Hide the groups (M)", "aria-label": "hide the groups" }, icon("close"));
  const list = el("ol", { "aria-label": "groups" });
  const panel = el("section", { class: "groups", "aria-label": "groups of products" });
  panel.append(el("div", { class: "said" }, choices, said, shut), list);
  panel.hidden = true;
  parent.append(panel);
  shut.addEventListener("click", () => {
    store.showGroups("off");
    root.focus({ preventScroll: true });
  });
  const point = ({ type, target }: Event) => {
    const row = (target as HTMLElement).closest<HTMLElement>("[data-group]");
    const leaves = type === "pointerleave" || type === "focusout" || !row;
    store.update({ hoveredGroup: leaves ? null : Number(row.dataset.group) });
  };
  for (const type of ["pointerover", "pointerleave", "focusin", "focusout"]) list.addEventListener(type, point);
  list.addEventListener("click", ({ target }) => {
    const row = (target as HTMLElement).closest<HTMLElement>("[data-group]");
    if (row && store.outlines) store.pickGroup(store.outlines.all[Number(row.dataset.group)]);
  });

  let shownFor = store.outlines;
  const fill = () => {
    const { outlines, state: { groups } } = store;
    if (groups === "off") return;
    choices.replaceChildren(
      ...(outlines?.directions ?? []).map((direction) => {
        const shown = String(direction === groups);
        const choice = el("button", { "aria-pressed": shown, "data-direction": direction }, TITLES[direction]);
        choice.addEventListener("click", () => {
          store.showGroups(direction);
          choices.querySelector<HTMLElement>(`[data-direction="${direction}"]`)?.focus({ preventScroll: true });
        });
        return choice;
      }),
    );
    said.textContent = outlines ? (outlines.content.said[groups] ?? "") : LOOKS;
    const all = outlines?.of(groups) ?? [];
    const rows = all.slice(0, MOST).map((outline) => el("li", {}, rowOf(outline)));
    if (all.length > MOST) rows.push(el("li", { class: "empty" }, `+${grouped(all.length - MOST)} more`));
    list.replaceChildren(...rows);
    list.hidden = !rows.length;
  };
  return {
    update(changed) {
      const { groups, group } = store.state;
      panel.hidden = groups === "off";
      root.dataset.groups = groups;
      if (changed.has("groups") || (changed.has("revision") && shownFor !== store.outlines)) {
        shownFor = store.outlines;
        fill();
      }
      for (const row of list.querySelectorAll<HTMLElement>("[data-group]")) {
        row.setAttribute("aria-pressed", String(Number(row.dataset.group) === group));
        row.classList.toggle("lit", Number(row.dataset.group) === store.litGroup?.index);
      }
    },
    dispose: () => panel.remove(),
  };
};

function rowOf(outline: Outline): HTMLElement {
  const { index, direction, title, where, cost, product } = outline;
  const row = el("button", { class: "gp", "data-group": String(index), title: product });
  const sign = nameSign(outline);
  if (!cost) {
    const what = direction === "ran" ? "ran alone: " : "not joined: ";
    row.append(sign, el("span", { class: "n" }, what, title), el("span", { class: "m" }, where));
    return row;
  }
  row.append(sign, el("span", { class: "n" }, title), el("span", { class: "m" }, where));
  row.append(el("span", { class: "k" }, costOf(cost)));
  return row;
}

function costOf({ launches: [before, after], copied }: NonNullable<Outline["cost"]>): string {
  const copies = copied ? `, ${size(copied)} copied` : "";
  return `${grouped(before)} → ${grouped(after)} ${after === 1 ? "launch" : "launches"}${copies}`;
}

/** Return the name of a group in its colour, as in the graph. */
export function nameSign({ name, hue, direction }: Outline): HTMLElement {
  if (!name) return el("span", { class: "gn refused", "aria-hidden": "true" });
  return el("span", { class: `gn ${direction}`, style: `--hue: var(--hue${hue})` }, name);
}

/** Return the groups that contain a task, and the reasons for refused ones, for the inspector. */
export function groupSection(store: Store, task: number): HTMLElement[] {
  const around = store.outlines?.around(task) ?? [];
  if (!around.length) return [];
  const items = around.map((outline) => {
    const row = el("button", { class: "gp", "data-group": String(outline.index) }, nameSign(outline));
    const { cost, direction } = outline;
    const title = cost ? outline.title : direction === "ran" ? "ran alone" : `not joined in the ${direction}`;
    const where = outline.cost ? `${TITLES[outline.direction]}, ${outline.where}` : outline.where;
    row.append(el("span", { class: "n" }, title), el("span", { class: "m" }, where));
    row.addEventListener("click", () => store.pickGroup(outline));
    return row;
  });
  return [el("div", { class: "sec", "data-part": "groups" }, el("h4", {}, "Groups"), ...items)];
}
