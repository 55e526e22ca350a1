/** The deck's only tooltip. */

import { el } from "../dom.ts";
import type { Stage } from "../view_types.ts";

/** Distance from the pointer, pixels. */
const BESIDE = 12;
const BELOW = 16;
const ABOVE = 10;
const MARGIN = 4;

/** Return a function that shows a text near a point of an element (which must be positioned), or hides it. */
export function makeTip(): Stage["tip"] {
  const tip = el("div", { class: "tip", role: "tooltip" });
  return (text, host, x = 0, y = 0) => {
    if (text === null || !host) {
      tip.classList.remove("on");
      return;
    }
    if (tip.parentNode !== host) host.append(tip);
    if (tip.textContent !== text) tip.textContent = text;
    tip.classList.add("on");
    const { offsetWidth: width, offsetHeight: height } = tip;
    const left = Math.min(host.clientWidth - width - MARGIN, x + BESIDE);
    const below = y + BELOW;
    const top = below + height > host.clientHeight ? y - height - ABOVE : below;
    tip.style.left = `${Math.max(MARGIN, left)}px`;
    tip.style.top = `${Math.max(MARGIN, top)}px`;
  };
}
