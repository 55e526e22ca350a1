/** Pointer events of the graph: hover, click, double click, and the decision whether the wheel moves the camera. */

import type { PlacedBox } from "../layout/layout_types.ts";
import type { Stage } from "../view_types.ts";
import type { Facts } from "./frame_state.ts";
import { type Hit, hitAt, wiresNear } from "./hit_test.ts";
import type { Painter } from "./painter.ts";
import type { Pilot } from "./camera_controls.ts";
import type { Wire } from "./scene_types.ts";
import { tipOfBox, tipOfLayer, tipOfSpot, tipOfWire } from "./tooltips.ts";

/** Duration of the hint about zooming, milliseconds. */
const HINT = 1600;
/** Widths at which the pointer is on a wire, pixels; the nearest wire is tried first, and of many the shortest. */
const WIRE_WIDTHS = [2, 4, 8];
const MOST_WIRES = 40;

export interface PointerOn {
  stage: Stage;
  canvas: HTMLCanvasElement;
  /** Positioned element around the canvas that contains the tooltips. */
  host: HTMLElement;
  hint: HTMLElement;
  pilot: Pilot;
  painter: Painter;
  facts(): Facts;
  toggle(box: PlacedBox): void;
}

/** Listen until `signal` aborts. */
export function bindPointer(on: PointerOn, signal: AbortSignal): void {
  const { stage, canvas, host, pilot } = on;
  const { store } = stage;
  const find = (event: MouseEvent, at = event.offsetY): Hit => {
    const { x, y, k } = pilot.view;
    return hitAt(on.facts().scene, (event.offsetX - x) / k, (at - y) / k, k);
  };
  const leave = () => {
    stage.tip(null);
    store.update({ hoveredTask: null, hoveredWire: null });
  };
  /** The equal layers over whose buttons the pointer is being dragged, and the vertical position. */
  let slide: { id: number; layer: number; y: number } | null = null;
  let slid = false;
  canvas.addEventListener("pointerdown", (event) => {
    const hit = event.button || event.pointerType === "touch" ? null : find(event);
    slide = null;
    slid = false;
    if (!hit || !("layer" in hit)) return;
    event.stopImmediatePropagation(); // the camera must not move
    canvas.setPointerCapture(event.pointerId);
    slide = { id: hit.layersOf.box.id, layer: hit.layer, y: event.offsetY };
  }, { signal, capture: true });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons && !slide) return stage.tip(null);
    const hit = find(event, event.buttons ? slide?.y : undefined);
    if (event.buttons && slide) {
      if (!hit || !("layer" in hit) || hit.layersOf.box.id !== slide.id) return;
      slid ||= hit.layer !== slide.layer;
      if (slid && store.state.layers.get(slide.id) !== hit.layer) store.pinLayer(slide.id, hit.layer);
    }
    canvas.style.cursor = hit ? "pointer" : "grab";
    const hoveredWire = hit ? null : wireAt(on, event);
    store.update({ hoveredTask: hit && "spot" in hit ? hit.spot.task : null, hoveredWire });
    stage.tip(saidOf(on, hit, hoveredWire), host, event.offsetX, event.offsetY);
  }, { signal });
  canvas.addEventListener("pointerleave", leave, { signal });
  canvas.addEventListener("click", (event) => {
    if (event.detail > 1 || slid) return;
    const hit = find(event);
    stage.tip(null);
    if (!hit) store.update({ selected: null });
    else if ("spot" in hit) store.select(hit.spot.task);
    else if ("layer" in hit) store.pinLayer(hit.layersOf.box.id, hit.layer);
    else on.toggle(hit.box);
  }, { signal });
  canvas.addEventListener("dblclick", (event) => {
    if (!find(event)) store.update({ camera: "fit" });
  }, { signal });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") stage.root.focus({ preventScroll: true });
  }, { signal });
  bindWheelHint(on, signal);
}

function saidOf({ stage, facts, painter }: PointerOn, hit: Hit, wire: Wire | null): string | null {
  if (hit && "spot" in hit) return tipOfSpot(stage.store, facts(), hit.spot);
  if (hit && "layer" in hit) return tipOfLayer(facts(), hit.layersOf, hit.layer);
  if (hit) return tipOfBox(facts(), hit.box);
  return wire && tipOfWire(stage.store, facts(), wire, painter.bytes);
}

function wireAt({ facts, painter, pilot }: PointerOn, event: MouseEvent): Wire | null {
  const { x, y, k } = pilot.view;
  const at = { x: (event.offsetX - x) / k, y: (event.offsetY - y) / k };
  const near = wiresNear(facts().scene, at.x, at.y, k).slice(0, MOST_WIRES);
  const found = WIRE_WIDTHS.map((width) => near.find(({ outline }) => painter.isOn(outline, at.x, at.y, width / k)));
  return found.find(Boolean) ?? null;
}

/**
 * Return whether a wheel or touch event moves the camera. If not, the page scrolls, so that the graph does not trap the
 * user.
 */
export function isForCamera(canvas: HTMLCanvasElement, event: WheelEvent | TouchEvent): boolean {
  const focused = (canvas.getRootNode() as Document | ShadowRoot).activeElement === canvas;
  if ("touches" in event) return focused || event.touches.length > 1;
  return focused || event.ctrlKey || event.metaKey;
}

function bindWheelHint({ canvas, hint }: PointerOn, signal: AbortSignal): void {
  let timer = 0;
  canvas.addEventListener("wheel", (event) => {
    clearTimeout(timer);
    hint.classList.toggle("on", !isForCamera(canvas, event));
    timer = window.setTimeout(() => hint.classList.remove("on"), HINT);
  }, { signal, passive: true });
  signal.addEventListener("abort", () => clearTimeout(timer));
}
