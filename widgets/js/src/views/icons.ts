/** Icons of the deck: 16 px line icons for buttons, and the four signs of a task's state. */

import { svg } from "../dom.ts";
import type { Sign } from "../model/recompute.ts";
import type { ShownState } from "../model/replay.ts";

/** Strokes of each icon by name, followed by filled shapes if it has any. */
const ICONS = {
  start: ["M3.5 3v10", "M12.5 3.5 6.5 8l6 4.5z"],
  back: ["", "M10.5 3.5 4.5 8l6 4.5z"],
  play: ["", "M4.5 2.8 12.8 8l-8.3 5.2z"],
  pause: ["", "M4.1 3.5h2.2v9H4.1zM9.7 3.5h2.2v9H9.7z"],
  stop: ["", "M4 4h8v8H4z"],
  step: ["", "m5.5 3.5 6 4.5-6 4.5z"],
  breakpoint: ["", "m2.5 4 5 4-5 4zM10.9 5.2h2l1.4 1.4v2.8l-1.4 1.4h-2L9.5 9.4V6.6z"],
  end: ["M12.5 3v10", "M3.5 3.5 9.5 8l-6 4.5z"],
  octagon: ["", "M5.7 2.5h4.6l3.2 3.2v4.6l-3.2 3.2H5.7l-3.2-3.2V5.7z"],
  sun: [
    "M10.8 8a2.8 2.8 0 1 1-5.6 0 2.8 2.8 0 0 1 5.6 0zM8 1.8v1.4M8 12.8v1.4M1.8 8h1.4M12.8 8h1.4M3.6 3.6l1 1M11.4 11.4l1 1M12.4 3.6l-1 1M4.6 11.4l-1 1",
  ],
  moon: ["M13 9.6A5.4 5.4 0 0 1 6.4 3a5.4 5.4 0 1 0 6.6 6.6z"],
  follow_page: ["M13.5 8a5.5 5.5 0 1 1-11 0 5.5 5.5 0 0 1 11 0z", "M8 2.5a5.5 5.5 0 0 1 0 11z"],
  fold: ["M3 8h10M8 1.8v3.6M6 3.6 8 5.6l2-2M8 14.2v-3.6M6 12.4l2-2 2 2"],
  unfold: ["M3 8h10M8 5.6V2M6 3.8 8 1.8l2 2M8 10.4V14M6 12.2l2 2 2-2"],
  fit: ["M2.8 6V2.8H6M10 2.8h3.2V6M13.2 10v3.2H10M6 13.2H2.8V10"],
  full: ["M9.5 2.5h4v4M6.5 13.5h-4v-4M13.2 2.8 9.5 6.5M2.8 13.2l3.7-3.7"],
  unfull: ["M13.5 6.5h-4v-4M2.5 9.5h4v4M9.8 6.2l3.7-3.7M6.2 9.8l-3.7 3.7"],
  follow: ["M8 1.8v2.4M8 11.8v2.4M1.8 8h2.4M11.8 8h2.4", "M10 8a2 2 0 1 1-4 0 2 2 0 0 1 4 0z"],
  search: ["M11.2 7a4.2 4.2 0 1 1-8.4 0 4.2 4.2 0 0 1 8.4 0zM10.3 10.3l3.2 3.2"],
  why: ["M3.5 2.5v5.2a2 2 0 0 0 2 2h6.8M9.6 6.9l2.7 2.8-2.7 2.8"],
  close: ["M4 4l8 8M12 4l-8 8"],
  watch: [
    "M1.8 8S4 3.9 8 3.9 14.2 8 14.2 8 12 12.1 8 12.1 1.8 8 1.8 8z",
    "M9.6 8a1.6 1.6 0 1 1-3.2 0 1.6 1.6 0 0 1 3.2 0z",
  ],
  over: ["M2.5 8.6a5.6 5.6 0 0 1 10.6-1.7M13.4 3.6v3.6H9.8", "M9.5 12.2a1.5 1.5 0 1 1-3 0 1.5 1.5 0 0 1 3 0z"],
  out: ["M8 9V2.8M4.9 5.7 8 2.6l3.1 3.1", "M9.5 12.7a1.5 1.5 0 1 1-3 0 1.5 1.5 0 0 1 3 0z"],
  rewind: ["M3.2 2.8v3.9h3.9M3.4 6.5A5.2 5.2 0 1 1 3.2 10"],
  branch: [
    "M4.5 4.6v6.8M4.5 9h3.2a3.8 3.8 0 0 0 3.8-3.8v-.6",
    "M6 3.2a1.5 1.5 0 1 1-3 0 1.5 1.5 0 0 1 3 0zM6 12.8a1.5 1.5 0 1 1-3 0 1.5 1.5 0 0 1 3 0zM13 3.2a1.5 1.5 0 1 1-3 0 1.5 1.5 0 0 1 3 0z",
  ],
  groups: ["M5.5 2.5h-3v3M10.5 2.5h3v3M5.5 13.5h-3v-3M10.5 13.5h3v-3", "M5.2 6.8h2.4v2.4H5.2zM8.8 6.8h2.4v2.4H8.8z"],
  created: ["M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM8 5v3.2l2.2 1.6"],
  check: ["m3 8.6 3.2 3.2L13 4.6"],
  warning: ["M8 2.6 14 13.2H2zM8 6.6v3M8 11.4v.1"],
} satisfies Record<string, [string, string?]>;

export type IconName = keyof typeof ICONS;

/** Create a picture with this many units per side, shown at `size` pixels. */
function picture(units: number, size = units, attributes: Record<string, string | number> = {}): SVGSVGElement {
  const viewBox = `0 0 ${units} ${units}`;
  return svg("svg", { width: size, height: size, viewBox, fill: "none", "aria-hidden": "true", ...attributes });
}

/**
 * Return an icon in the colour of the surrounding text. It is hidden from screen readers, because its button has a
 * name.
 */
export function icon(name: IconName, size = 16): SVGSVGElement {
  const [lines, fills]: [string, string?] = ICONS[name];
  const drawn = { stroke: "currentColor", "stroke-width": 1.5, "stroke-linecap": "round", "stroke-linejoin": "round" };
  const made = picture(16, size, drawn);
  if (lines) made.append(svg("path", { d: lines }));
  if (fills) made.append(svg("path", { d: fills, fill: "currentColor", "stroke-width": 1 }));
  return made;
}

/** Return the deck's logo: two reels over a tape head. */
export function mark(): SVGSVGElement {
  const made = picture(20);
  const drawn = { stroke: "currentColor", "stroke-width": 1.6 };
  made.append(
    svg("circle", { cx: 5.5, cy: 8, r: 3.2, ...drawn }),
    svg("circle", { cx: 14.5, cy: 8, r: 3.2, ...drawn }),
    svg("path", { d: "M2.6 13.5h4.6l1.2-1.6h3.2l1.2 1.6h4.6", "stroke-linejoin": "round", ...drawn }),
    svg("path", { d: "M8.6 15.5h2.8v2H8.6z", fill: "currentColor" }),
  );
  return made;
}

/** Return the sign of a state; for a ready task, `inside` is its place in the queue. */
export function glyph(state: ShownState, size = 14, inside = ""): SVGSVGElement {
  const made = picture(14, size);
  if (state === "waiting") {
    made.append(svg("circle", { cx: 7, cy: 7, r: 4.4, stroke: "var(--ink3)", "stroke-width": 1.4 }));
  } else if (state === "running") {
    made.append(svg("path", { d: "M3.5 2.2 12 7l-8.5 4.8z", fill: "currentColor" }));
  } else if (state === "failed") {
    made.append(svg("path", { d: "m3 3 8 8M11 3l-8 8", stroke: "var(--bad)", "stroke-width": 2, "stroke-linecap": "round" }));
  } else if (state === "done" || state === "planned") {
    const tick = (stroke: string, width: number) =>
      svg("path", { d: "m2.8 7.4 2.9 2.9 5.6-6", stroke, "stroke-width": width, "stroke-linecap": "round", "stroke-linejoin": "round" });
    if (state === "done") made.append(tick("var(--ink2)", 1.7));
    else made.append(tick("var(--ink2)", 3.8), tick("var(--panel)", 1.8)); // hollow
  } else {
    made.append(svg("circle", { cx: 7, cy: 7, r: 5.6, fill: "var(--accent)" }));
    const at = { x: 7, y: 10, "text-anchor": "middle", "font-size": 9, "font-weight": 600, fill: "var(--accent-ink)" };
    if (inside) made.append(svg("text", at, inside));
  }
  return made;
}

/** Return a sign of recomputation, as in the graph. */
export function recomputeSign(sign: Sign): SVGSVGElement {
  const made = picture(14);
  const frame = svg("rect", { x: 1, y: 1, width: 12, height: 12, rx: 3, stroke: "var(--saved)", "stroke-width": 1.3 });
  made.append(frame);
  if (sign === "dropped") frame.setAttribute("stroke-dasharray", "2 1.6");
  else if (sign === "kept") {
    frame.setAttribute("fill", "var(--saved)");
    made.append(svg("path", { d: "M4 7h6M7 4v6", stroke: "var(--panel)", "stroke-width": 1.6 }));
  } else {
    made.append(
      svg("path", { d: "M9.1 4.9a3 3 0 1 0 0 4.2", stroke: "var(--ink)", "stroke-width": 1.3, "stroke-linecap": "round" }),
      svg("path", { d: "M10.7 6.4 10.5 2.3 6.7 5.5z", fill: "var(--ink)" }),
    );
  }
  return made;
}
