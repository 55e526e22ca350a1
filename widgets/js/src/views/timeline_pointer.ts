/** Pointer events of the timeline: hover, drag to scrub, wheel to zoom, double click on a phase. */

import { rowTop } from "../charts/lifetimes.ts";
import type { Picture } from "../charts/timeline_picture.ts";
import { mostZoom, shifted, WHOLE, type Zoom, zoomed, zoomOf } from "../model/axis.ts";
import { HEADING, PHASES, ROW } from "../model/timeline_rows.ts";
import { levelsOfMemory } from "../model/memory.ts";
import type { Store } from "../store.ts";
import { grouped, nanoseconds, nth, size } from "../format.ts";
import type { Stage } from "../view_types.ts";
import { bindDragEnd } from "./cancel_drag.ts";
import { momentOf } from "./memory_legend.ts";

/** Wheel pixels that double the scale. */
const DOUBLES = 240;
/** Pixels per line and per page, for wheels that report these units. */
const LINE = 16;
const PAGE = 400;

/** Bind the events. Return a function that removes them. */
export function bindTimeline(element: HTMLElement, slider: HTMLInputElement, stage: Stage, shown: () => Picture | null): () => void {
  const { store } = stage;
  const ends = new AbortController();
  const { signal } = ends;
  const pixels = ({ clientX, clientY }: MouseEvent) => {
    const { left, top } = element.getBoundingClientRect();
    return { x: clientX - left - element.clientLeft, y: clientY - top - element.clientTop };
  };
  const isControl = ({ target }: Event) => (target as HTMLElement).closest?.("button") !== null;
  const zoomTo = (zoom: Zoom) => {
    if (zoom.from !== store.state.zoom.from || zoom.to !== store.state.zoom.to) store.update({ zoom });
  };
  const leave = () => {
    store.update({ hoveredTime: null });
    stage.tip(null);
  };
  let dragged = false;
  let before = 0;

  element.addEventListener("pointerdown", (event) => {
    const picture = shown();
    const { x, y } = pixels(event);
    if (!picture || event.button !== 0 || isControl(event)) return;
    slider.focus({ preventScroll: true, focusVisible: false });
    event.preventDefault(); // otherwise the browser moves the focus to the element under the pointer
    if (y < PHASES || x < picture.axis.left || x > picture.axis.right) return;
    dragged = true;
    before = store.state.t;
    element.setPointerCapture(event.pointerId);
    store.update({ playing: false });
    store.go(picture.axis.placeAt(x));
  }, { signal });
  element.addEventListener("pointermove", (event) => {
    const picture = shown();
    if (!picture) return;
    const { x, y } = pixels(event);
    const { axis } = picture;
    if (dragged && axis.placeAt(x) !== store.state.t) store.go(axis.placeAt(x));
    if (!dragged && (isControl(event) || x < axis.left || x > axis.right || y < PHASES)) {
      const row = y < PHASES || x > axis.left ? null : rowAt(picture, y);
      store.update({ hoveredTime: null });
      stage.tip(row === null ? null : rowWords(picture, row), element, x, y);
      return;
    }
    const time = axis.after ? axis.timeAt(x) : Math.min(axis.timeAt(x), axis.places - 1e-9);
    store.update({ hoveredTime: time });
    const row = rowAt(picture, y);
    stage.tip([row === null ? "" : rowWords(picture, row), timeWords(store, picture, time)].filter(Boolean).join("\n"), element, x, y);
  }, { signal });
  for (const end of ["pointerup", "pointercancel", "lostpointercapture"] as const) {
    element.addEventListener(end, () => (dragged = false), { signal });
  }
  bindDragEnd(() => dragged, (back) => {
    dragged = false;
    if (back) store.go(before);
  }, signal);
  element.addEventListener("pointerleave", leave, { signal });
  element.addEventListener("dblclick", (event) => {
    const picture = shown();
    const { x, y } = pixels(event);
    if (!picture || y >= PHASES || isControl(event)) return;
    const phase = picture.axis.phases.find((each) => x >= each.left && x <= each.right);
    if (phase) store.update({ zoom: store.state.zoom === WHOLE ? zoomOf(picture.axis, phase) : WHOLE });
  }, { signal });

  const zoomBy = ({ axis }: Picture, factor: number, x: number) => {
    const about = Math.max(0, Math.min(1, (x - axis.left) / (axis.right - axis.left)));
    zoomTo(zoomed(store.state.zoom, factor, about, mostZoom(axis.places, axis.right - axis.left)));
  };
  element.addEventListener("wheel", (event) => {
    const picture = shown();
    if (!picture || !isOurs(event, slider, store)) return;
    event.preventDefault();
    const unit = [1, LINE, PAGE][event.deltaMode];
    const { axis } = picture;
    const { from, to } = store.state.zoom;
    const across = event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      zoomTo(shifted(store.state.zoom, (across * unit * (to - from)) / (axis.right - axis.left)));
    } else zoomBy(picture, 2 ** ((-event.deltaY * unit) / DOUBLES), pixels(event).x);
  }, { signal, passive: false });
  element.addEventListener("zoomby", (event) => {
    const picture = shown();
    if (picture) zoomBy(picture, (event as CustomEvent<number>).detail, picture.axis.x(store.state.t));
  }, { signal });
  return () => ends.abort();
}

/**
 * Return whether a wheel event zooms the timeline. If not, the page scrolls, so that the timeline does not trap the
 * user; on a page without anything to scroll it always zooms.
 */
function isOurs(event: WheelEvent, slider: HTMLElement, { state }: Store): boolean {
  const focused = (slider.getRootNode() as Document | ShadowRoot).activeElement === slider;
  const { scrollHeight, clientHeight } = document.documentElement;
  return focused || state.isFull || event.ctrlKey || event.metaKey || event.shiftKey || scrollHeight <= clientHeight;
}

function rowAt({ bands, lifetimes }: Picture, y: number): number | null {
  const row = Math.floor((y - bands.lifetimes.top - HEADING) / ROW);
  return row >= 0 && row < Math.min(bands.lifetimes.rows, lifetimes.length) && y >= rowTop({ bands }, row) ? row : null;
}

function rowWords({ lifetimes }: Picture, row: number): string {
  const { name, module, count, nbytes, made_by, kept_by, freed_by } = lifetimes[row].row;
  const bytes = count > 1 ? `${grouped(count)} × ${size(nbytes)}` : size(nbytes);
  const head = [name, module].filter(Boolean).join(" ");
  return [`${head}, ${bytes}`, `made by: ${made_by}`, `kept: ${kept_by}`, `freed: ${freed_by}`].join("\n");
}

/**
 * Return `53rd CloneBackward0 blocks.3.attn`, and below it the duration and the memory; in the forward only the memory.
 */
function timeWords(store: Store, { axis, times, stack }: Picture, time: number): string {
  const { memory, replay, graph, schedules } = store;
  const forward = schedules.map((each) => each.memory).find((each) => each && levelsOfMemory(each).forwardEvents);
  const alive = memory && stack ? `${size(momentOf(levelsOfMemory(memory), forward ? levelsOfMemory(forward) : null, time).level)} alive` : "";
  if (time < 0) return alive ? `forward: ${alive}` : "forward";
  const place = Math.floor(time);
  if (place >= axis.places) return axis.after && alive ? `${axis.after.name}: ${alive}` : "";
  const task = replay.schedule.order[place];
  const took = times ? nanoseconds(times.end[place] - times.start[place]) : "";
  const head = [nth(place + 1), graph.name(task), graph.place(task)].filter(Boolean).join(" ");
  return [head, [took, alive].filter(Boolean).join(", ")].filter(Boolean).join("\n");
}
