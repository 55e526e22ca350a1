/** The pointer on the graph: hover, click, double click, and whose the wheel is. */

import type { PlacedBox } from "../layout/placed.ts";
import type { Stage } from "../view.ts";
import { areaOf } from "./camera.ts";
import type { Facts } from "./facts.ts";
import { type Hit, hitAt } from "./hit.ts";
import type { Pilot } from "./pilot.ts";
import { tipOfBox, tipOfSpot } from "./says.ts";

/** The hint how to zoom stays so long, milliseconds. */
const HINT = 1600;

export interface PointerOn {
  stage: Stage;
  canvas: HTMLCanvasElement;
  /** The positioned element around the canvas: tooltips are in it. */
  host: HTMLElement;
  hint: HTMLElement;
  pilot: Pilot;
  facts(): Facts;
  toggle(box: PlacedBox): void;
}

/** Listens until `signal` aborts. */
export function bindPointer(on: PointerOn, signal: AbortSignal): void {
  const { stage, canvas, host, pilot } = on;
  const { store } = stage;
  const find = (event: MouseEvent): Hit => {
    const { x, y } = areaOf(pilot.view, { width: 1, height: 1 });
    const { k } = pilot.view;
    return hitAt(on.facts().scene, x + event.offsetX / k, y + event.offsetY / k, k);
  };
  const leave = () => {
    stage.tip(null);
    store.update({ hoveredTask: null });
  };
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons) return stage.tip(null);
    const hit = find(event);
    canvas.style.cursor = hit ? "pointer" : "grab";
    store.update({ hoveredTask: hit && "spot" in hit ? hit.spot.task : null });
    const said = hit && ("spot" in hit ? tipOfSpot(store, on.facts(), hit.spot) : tipOfBox(on.facts(), hit.box));
    stage.tip(said, host, event.offsetX, event.offsetY);
  }, { signal });
  canvas.addEventListener("pointerleave", leave, { signal });
  canvas.addEventListener("click", (event) => {
    if (event.detail > 1) return;
    const hit = find(event);
    stage.tip(null);
    if (!hit) store.update({ selected: null });
    else if ("spot" in hit) store.select(hit.spot.task);
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

/** Whether a wheel or a touch moves the camera. Otherwise the page scrolls: the graph is no trap. */
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
