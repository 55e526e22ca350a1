import assert from "node:assert/strict";
import { test } from "node:test";
import { Pilot } from "../src/graph/camera_controls.ts";

const windowOf = Object.assign(globalThis, { window: new EventTarget() }).window;

/** The parts of a canvas that CameraControls uses. */
class Canvas extends EventTarget {
  private captured = new Set<number>();

  getBoundingClientRect = () => ({ left: 0, top: 0 });
  setPointerCapture = (id: number) => this.captured.add(id);
  hasPointerCapture = (id: number) => this.captured.has(id);

  say(type: string, about: object): Event {
    const event = Object.assign(new Event(type, { cancelable: true }), { button: 0, ctrlKey: false }, about);
    this.dispatchEvent(event);
    return event;
  }

  lose(pointerId: number): void {
    this.captured.delete(pointerId);
    this.say("lostpointercapture", { pointerId });
  }
}

function flown() {
  const canvas = new Canvas();
  const ending = new AbortController();
  let moves = 0;
  const count = () => void moves++;
  const pilot = new Pilot(canvas as unknown as HTMLCanvasElement, () => true, count, ending.signal);
  return { canvas, pilot, ending, moves: () => moves };
}

const at = (clientX: number, clientY: number, pointerId = 1) => ({ clientX, clientY, pointerId, pointerType: "mouse" });

test("a drag is over when the pointer is lost, also where no release is heard of", () => {
  const { canvas, pilot } = flown();
  canvas.say("pointerdown", at(10, 10));
  canvas.say("pointermove", at(30, 20));
  assert.deepEqual(pilot.view, { x: 20, y: 10, k: 1 });
  canvas.lose(1);
  canvas.say("pointermove", at(90, 90));
  assert.deepEqual(pilot.view, { x: 20, y: 10, k: 1 });
});

test("Escape takes a drag back, and where the window loses the focus it is over", () => {
  for (const [event, view] of [
    [Object.assign(new Event("keydown", { cancelable: true }), { key: "Escape" }), { x: 0, y: 0, k: 1 }],
    [new Event("blur"), { x: 20, y: 10, k: 1 }],
  ] as const) {
    const { canvas, pilot } = flown();
    canvas.say("pointerdown", at(10, 10));
    canvas.say("pointermove", at(30, 20));
    windowOf.dispatchEvent(event);
    assert.deepEqual(pilot.view, view);
    canvas.say("pointermove", at(90, 90));
    assert.deepEqual(pilot.view, view);
  }
});

test("another pointer has no part in a drag", () => {
  const { canvas, pilot } = flown();
  canvas.say("pointerdown", at(10, 10));
  canvas.say("pointermove", at(300, 300, 2));
  assert.deepEqual(pilot.view, { x: 0, y: 0, k: 1 });
});

test("a wheel scales alike in pixels, lines and pages, and sideways moves nothing", () => {
  for (const [deltaY, deltaMode] of [[-100, 0], [-4, 1], [-0.2, 2]]) {
    const { canvas, pilot } = flown();
    canvas.say("wheel", { ...at(0, 0), deltaY, deltaMode });
    assert.equal(pilot.view.k.toFixed(4), (2 ** 0.2).toFixed(4));
  }
  const { canvas, moves } = flown();
  assert.ok(canvas.say("wheel", { ...at(0, 0), deltaY: 0, deltaMode: 0 }).defaultPrevented, "nor does the page go back");
  assert.equal(moves(), 0);
});

test("nothing is heard after the end", () => {
  const { canvas, ending, moves } = flown();
  ending.abort();
  canvas.say("pointerdown", at(10, 10));
  canvas.say("pointermove", at(30, 20));
  canvas.say("wheel", { ...at(0, 0), deltaY: -100, deltaMode: 0 });
  assert.equal(moves(), 0);
});
