/** Messages and traits between the page and the kernel. */

import assert from "node:assert/strict";
import { gzipSync } from "node:zlib";
import { test } from "node:test";
import { type Model, openLink } from "../src/kernel_link.ts";
import { smallDocument } from "./small_document.ts";

type Listener = (...given: unknown[]) => void;

function zipped(content: unknown): DataView<ArrayBuffer> {
  return new DataView(Uint8Array.from(gzipSync(JSON.stringify(content))).buffer);
}

/** A signal like Lumino's. */
class FakeSignal<T> {
  readonly slots = new Set<(sender: unknown, value: T) => void>();
  connect(slot: (sender: unknown, value: T) => void): void {
    this.slots.add(slot);
  }

  disconnect(slot: (sender: unknown, value: T) => void): void {
    this.slots.delete(slot);
  }

  emit(value: T): void {
    for (const slot of this.slots) slot(null, value);
  }
}

/** A model like anywidget's: `set` reports a change at once, even if the new value equals the old one. */
class FakeModel implements Model {
  readonly sent: unknown[] = [];
  saves = 0;
  dead = false;
  readonly widget_manager = { kernel: { statusChanged: new FakeSignal<string>(), disposed: new FakeSignal<void>() } };
  private readonly listeners = new Map<string, Listener>();
  private readonly values = new Map<string, unknown>([
    ["_document", zipped(smallDocument())],
    ["_is_live", true],
    ["selection", null],
    ["breakpoints", []],
  ]);

  get(name: string): unknown {
    return this.values.get(name);
  }

  set(name: string, value: unknown): void {
    this.values.set(name, value);
    this.listeners.get(`change:${name}`)?.();
  }

  save_changes(): void {
    this.saves++;
  }

  send(content: unknown): void {
    if (this.dead) throw new Error("Kernel is dead");
    this.sent.push(content);
  }

  on(event: string, listener: (...given: never[]) => void): void {
    this.listeners.set(event, listener as Listener);
  }

  off(): void {
    this.listeners.clear();
  }

  /** Send the event that JupyterLab's widget manager triggers when the kernel restarts. */
  lose(): void {
    this.listeners.get("comm_live_update")?.();
  }

  hear(message: unknown, content?: unknown): void {
    this.listeners.get("msg:custom")?.(message, content === undefined ? [] : [zipped(content)]);
  }

  news(position: number): void {
    const told = { position, status: "stopped", trouble: "", records: {}, live: null, others: null, metas: [] };
    this.hear({ kind: "news" }, told);
  }
}

/** Wait until all messages are handled, except those that must be decompressed first. */
const taken = () => new Promise((resolve) => setTimeout(resolve, 100));

/** Wait for decompression, which takes time on a busy machine. */
async function until(holds: () => boolean): Promise<void> {
  for (let tries = 0; tries < 3000 && !holds(); tries++) await new Promise((resolve) => setTimeout(resolve, 10));
}

test("an opened page says how old its document is", async () => {
  const model = new FakeModel();
  await openLink(model, new AbortController().signal);
  assert.deepEqual(model.sent, [{ kind: "hello", revision: 0 }]);
});

test("a recording is asked for nothing", async () => {
  const model = new FakeModel();
  model.set("_is_live", false);
  const store = await openLink(model, new AbortController().signal);
  assert.deepEqual([store.link, model.sent], [null, []]);
});

test("messages keep their order, also those that come while the document is read", async () => {
  const model = new FakeModel();
  const opening = openLink(model, new AbortController().signal);
  model.news(2);
  model.hear({ kind: "back", count: 1 });
  const store = await opening;
  await until(() => store.state.t === 1);
  assert.deepEqual([store.state.front, store.state.t], [2, 1]);
});

test("a message that cannot be read is told, and later ones are still heard", async (context) => {
  const model = new FakeModel();
  const store = await openLink(model, new AbortController().signal);
  const told = context.mock.method(console, "error", () => {});
  model.hear({ kind: "news" }, undefined);
  model.news(1);
  await until(() => store.state.front === 1);
  assert.equal(told.mock.callCount(), 1);
  assert.equal(store.state.front, 1);
});

test("what is chosen on the page is told to Python, once", async () => {
  const model = new FakeModel();
  const store = await openLink(model, new AbortController().signal);
  store.select(3);
  store.toggleBreakpoint(2);
  store.toggleBreakpoint(0);
  store.toggleBreakpoint(2);
  assert.deepEqual([model.get("selection"), model.saves], [3, 1]);
  const asked = [[2, true], [0, true], [2, false]].map(([task, on]) => ({ kind: "breakpoint", task, on }));
  assert.deepEqual(model.sent.slice(1), asked);
  store.step();
  store.go(1);
  assert.equal(model.get("selection"), null, "what moves on deselects");
  await taken();
  assert.equal(model.saves, 2);
});

test("a choice that can't be told is shown all the same, and what Python chooses is heard", async (context) => {
  const model = new FakeModel();
  const store = await openLink(model, new AbortController().signal);
  const said = context.mock.method(console, "error", () => {});
  const shown: unknown[] = [];
  store.subscribe(() => shown.push(store.state.selected));
  model.set = () => {
    throw new Error("Kernel is dead");
  };
  store.select(3);
  assert.deepEqual([shown, said.mock.callCount()], [[3], 1]);
  FakeModel.prototype.set.call(model, "selection", 1);
  await taken();
  assert.equal(store.state.selected, 1);
});

test("what is chosen in Python is shown, and not told back", async () => {
  const model = new FakeModel();
  const store = await openLink(model, new AbortController().signal);
  model.set("selection", 1);
  model.set("breakpoints", [3, 2, 99]);
  await taken();
  assert.equal(store.state.selected, 1);
  assert.deepEqual([...store.state.breakpoints], [3, 2], "there is no task 99");
  assert.equal(model.sent.length, 1, "the greeting alone");
  store.toggleBreakpoint(3);
  assert.deepEqual(model.sent.slice(1), [{ kind: "breakpoint", task: 3, on: false }]);
  model.set("selection", 99);
  await taken();
  assert.equal(store.state.selected, null);
});

test("what Python says of all stops is shown, and not told back", async () => {
  const model = new FakeModel();
  const store = await openLink(model, new AbortController().signal);
  const row = { number: 1, kind: "break", text: "encoder", enabled: false, hits: 2, tasks: [0, 1], calls: [] };
  model.set("_stops", [row]);
  await taken();
  assert.deepEqual([store.state.stops, [...store.state.marks]], [[row], [[0, false], [1, false]]]);
  assert.deepEqual([store.state.breakpoints.size, model.saves], [0, 0]);
});

test("a kernel that is gone is said to be so, and playing ends", async () => {
  const model = new FakeModel();
  const store = await openLink(model, new AbortController().signal);
  store.update({ playing: true });
  model.dead = true;
  store.link?.step(1);
  await taken();
  assert.match(store.state.trouble, /restarted or shut down/);
  assert.deepEqual([store.state.playing, store.link?.busy, store.state.status], [false, false, "closed"]);
});

test("a restarted kernel is noticed without a click", async () => {
  const model = new FakeModel();
  const store = await openLink(model, new AbortController().signal);
  model.hear({ kind: "heard" });
  model.lose();
  await taken();
  assert.match(store.state.trouble, /restarted or shut down/);
  assert.deepEqual([store.state.status, store.canPlay], ["closed", false]);
});

for (const status of ["autorestarting", "terminating", "dead"]) {
  test(`a kernel whose status is ${status} is noticed without a click`, async () => {
    const model = new FakeModel();
    const store = await openLink(model, new AbortController().signal);
    model.widget_manager.kernel.statusChanged.emit("busy");
    await taken();
    assert.equal(store.state.trouble, "");
    model.widget_manager.kernel.statusChanged.emit(status);
    await taken();
    assert.match(store.state.trouble, /restarted or shut down/);
    assert.equal(store.state.status, "closed");
  });
}

test("a closed deck is not kept by its kernel", async () => {
  const model = new FakeModel();
  const closing = new AbortController();
  await openLink(model, closing.signal);
  const { statusChanged, disposed } = model.widget_manager.kernel;
  assert.deepEqual([statusChanged.slots.size, disposed.slots.size], [1, 1]);
  closing.abort();
  assert.deepEqual([statusChanged.slots.size, disposed.slots.size], [0, 0]);
});

test("a kernel that does not answer is said to be silent, one that has heard is waited for", async (context) => {
  const model = new FakeModel();
  const store = await openLink(model, new AbortController().signal);
  context.mock.timers.enable({ apis: ["setTimeout"] });
  store.link?.run();
  model.hear({ kind: "heard" });
  context.mock.timers.tick(60_000);
  await new Promise(setImmediate);
  assert.equal(store.state.trouble, "");
  store.link?.step(1);
  context.mock.timers.tick(4_000);
  await new Promise(setImmediate);
  assert.match(store.state.trouble, /does not answer/);
});

test("a busy kernel interrupts playback, which continues with its answer", async (context) => {
  const model = new FakeModel();
  const store = await openLink(model, new AbortController().signal);
  context.mock.timers.enable({ apis: ["setTimeout"] });
  store.update({ playing: true });
  store.link?.step(1);
  context.mock.timers.tick(4_000);
  await new Promise(setImmediate);
  assert.match(store.state.trouble, /does not answer/);
  assert.deepEqual([store.state.playing, store.link?.busy], [true, true]);
  context.mock.timers.reset();
  model.news(1);
  await until(() => store.state.front === 1);
  assert.deepEqual([store.state.trouble, store.state.playing, store.link?.busy], ["", true, false]);
});
