/** The handle between graph and timeline. It divides the height between them, and the choice is stored. */

import { el } from "../dom.ts";
import type { MakeView } from "../view_types.ts";
import { bindDragEnd } from "./cancel_drag.ts";

/** Minimum heights, pixels. */
const LEAST_GRAPH = 190;
const LEAST_TIMELINE = 230;
/** Default height if no memory is known: the phases, the lanes, and the sentence that says so. */
const WITHOUT_MEMORY = 150;
const STEP = 24;
/** Graph's share of additional height. */
const GRAPH_SHARE = 0.6;
/** Height of a second device's lane, and of each further one. */
const SECOND_LANE = 26;
const LANE = 34;
const KEPT = "tapescope.timeline";

export const makeGrip: MakeView = (stage, parent) => {
  const { store, root } = stage;
  const grip = el("div", {
    class: "grip", role: "separator", tabindex: "0", "aria-orientation": "horizontal",
    "aria-label": "heights of graph and timeline", title: "Drag or ↑ ↓: resize graph and timeline. Double click or Home: reset",
  });
  parent.append(grip);
  /** Height of the timeline chosen by the user; null for the default. */
  let wanted: number | null = restored();

  const { length } = store.document.devices;
  const lanes = length > 1 ? SECOND_LANE + LANE * (length - 2) : 0;
  const graph = () => parent.querySelector<HTMLElement>(".graph")!;
  const heights = () => {
    const style = getComputedStyle(parent);
    const timeline = parent.querySelector<HTMLElement>(".time")?.offsetHeight ?? 0;
    const free = graph().offsetHeight + timeline;
    const fallback = Number.parseFloat(style.getPropertyValue("--timeline")) || LEAST_TIMELINE;
    const more = Math.max(0, parent.clientHeight - (Number.parseFloat(style.getPropertyValue("--height")) || 0));
    if (!store.schedules.some(({ memory }) => memory)) {
      return { free, timeline, first: WITHOUT_MEMORY + lanes, least: WITHOUT_MEMORY + lanes };
    }
    return { free, timeline, first: fallback + lanes + more * (1 - GRAPH_SHARE), least: LEAST_TIMELINE };
  };
  const apply = () => {
    parent.style.removeProperty("--time");
    const { free, first, least } = heights();
    const height = Math.max(least, Math.min(free - LEAST_GRAPH, wanted ?? first));
    parent.style.setProperty("--time", `${Math.round(height)}px`);
    const upper = Math.round(free - height);
    for (const [name, value] of [["now", upper], ["min", LEAST_GRAPH], ["max", Math.round(free - least)]]) {
      grip.setAttribute(`aria-value${name}`, String(value));
    }
    grip.setAttribute("aria-valuetext", `graph ${upper} pixels, timeline ${Math.round(height)}`);
  };
  const give = (height: number | null) => {
    const { free, least } = heights();
    wanted = height === null ? null : Math.max(least, Math.min(free - LEAST_GRAPH, height));
    keep(wanted);
    apply();
  };

  let held: { y: number; height: number } | null = null;
  grip.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    held = { y: event.clientY, height: heights().timeline };
    grip.setPointerCapture(event.pointerId);
  });
  grip.addEventListener("pointermove", (event) => held && give(held.height + held.y - event.clientY));
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"] as const) {
    grip.addEventListener(end, () => (held = null));
  }
  const ending = new AbortController();
  bindDragEnd(() => held !== null, (back) => {
    const { height } = held!;
    held = null;
    if (back) give(height);
  }, ending.signal);
  grip.addEventListener("dblclick", () => give(null));
  grip.addEventListener("keydown", (event) => {
    const steps: Record<string, number | null> = { ArrowUp: STEP, ArrowDown: -STEP, Home: null };
    if (!(event.key in steps)) return;
    event.preventDefault();
    event.stopPropagation();
    const step = steps[event.key];
    give(step === null ? null : heights().timeline + step);
  });
  const resize = new ResizeObserver(apply);
  resize.observe(root);
  return {
    update(changed) {
      if (changed.has("isFull") || changed.has("revision")) apply();
    },
    dispose() {
      ending.abort();
      resize.disconnect();
      grip.remove();
    },
  };
};

/** Store the height. If the browser cannot (as in a frame without an origin), the next page starts with the default. */
function keep(height: number | null): void {
  try {
    if (height === null) localStorage.removeItem(KEPT);
    else localStorage.setItem(KEPT, String(Math.round(height)));
  } catch {}
}

function restored(): number | null {
  try {
    return Number(localStorage.getItem(KEPT)) || null;
  } catch {
    return null;
  }
}
