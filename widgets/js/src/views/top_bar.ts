/** The bar at the top: title, transport, speed, policies, search and theme; errors are below it. */

import { el } from "../dom.ts";
import type { MakeView } from "../view_types.ts";
import { toggleHelp } from "./help.ts";
import { icon, type IconName, mark } from "./icons.ts";
import { makePolicyTabs } from "./policy_tabs.ts";
import { makeSearch } from "./search.ts";
import { nextTheme } from "./theme.ts";
import { makePast, makePosition, makeSpeed, makeTransport } from "./transport.ts";
import { makeTrouble } from "./error_banner.ts";

export const makeBar: MakeView = (stage, parent) => {
  const { title } = stage.store.document;
  const bar = el("div", { class: stage.store.link ? "bar live" : "bar" });
  bar.append(el("div", { class: "brand", title }, mark(), el("span", {}, title)));
  parent.append(bar);
  const aside = el("div", { class: "aside" });
  const lower = el("div", { class: "lower" });
  // One element, because the button back is usually invisible; alone on a line it would leave an empty row.
  const pace = el("div", { class: "pace" });
  const views = [makeTransport(stage, bar), makePosition(stage, bar), makeSpeed(stage, pace), makePast(stage, pace)];
  bar.append(pace);
  views.push(makePolicyTabs(stage, lower));
  lower.append(aside);
  bar.append(lower);
  views.push(makeSearch(stage, aside), makeHelpButton(stage, aside), makeThemeButton(stage, aside));
  views.push(makeFullButton(stage, aside), makeTrouble(stage, parent));
  return {
    update(changed) {
      for (const view of views) view.update(changed);
    },
    draw(now) {
      for (const view of views) view.draw?.(now);
      return false;
    },
    dispose() {
      for (const view of views) view.dispose();
      bar.remove();
    },
  };
};

const makeThemeButton: MakeView = ({ store }, parent) => {
  const button = el("button", { class: "ib" });
  button.addEventListener("click", () => nextTheme(store));
  parent.append(button);
  return {
    update(changed) {
      if (!changed.has("theme")) return;
      const { theme } = store.state;
      const names: Record<string, IconName> = { light: "sun", dark: "moon" };
      const said = theme === null ? "same as the page" : theme;
      button.replaceChildren(icon(theme === null ? "follow_page" : names[theme]));
      button.title = `Theme: ${said} (T)`;
      button.setAttribute("aria-label", `theme: ${said}`);
    },
    dispose: () => button.remove(),
  };
};

/** Create the button that shows the keys. */
const makeHelpButton: MakeView = (stage, parent) => {
  const button = el("button", { class: "ib keys", title: "Keys (?)", "aria-label": "all keys" }, "?");
  button.addEventListener("click", () => toggleHelp(stage));
  parent.append(button);
  return { update() {}, dispose: () => button.remove() };
};

const makeFullButton: MakeView = ({ store }, parent) => {
  const button = el("button", { class: "ib full" });
  button.addEventListener("click", () => store.update({ isFull: !store.state.isFull }));
  parent.append(button);
  return {
    update(changed) {
      if (!changed.has("isFull")) return;
      const { isFull } = store.state;
      button.replaceChildren(icon(isFull ? "unfull" : "full"));
      button.title = isFull ? "Leave full window (W, Esc)" : "Full window (W)";
      button.setAttribute("aria-label", "full window");
      button.setAttribute("aria-pressed", String(isFull));
    },
    dispose: () => button.remove(),
  };
};
