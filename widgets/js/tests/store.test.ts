/** A deck's one state: of a trace that is played, and of a live session that the kernel drives. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Schedule } from "../src/model/document.ts";
import { Player } from "../src/player.ts";
import { type Link, type Progress, Store } from "../src/store.ts";
import { smallDocument } from "./small_document.ts";

/** What was asked of the kernel. */
type Asked = [name: string, ...given: unknown[]][];

function trace(): Store {
  return new Store(smallDocument(), null);
}

/** A session of four tasks, which run in the order 2, 1, 3, 0. */
function live(): { store: Store; asked: Asked } {
  const asked: Asked = [];
  const note = (name: string) => (...given: unknown[]) => void asked.push([name, ...given]);
  const link: Link = {
    busy: false,
    step: note("step"),
    stepTask: note("stepTask"),
    runTo: note("runTo"),
    run: note("run"),
    stop: note("stop"),
    setPolicy: note("setPolicy"),
    inspect: note("inspect"),
  };
  const store = new Store({ ...smallDocument(), position: 0, schedules: [planOf("heap"), planOf("bfs")] }, link);
  return { store, asked };
}

function planOf(policy: string, order = [2, 1, 3, 0]): Schedule {
  return { policy, title: "", order, keys: "created", by_hand: [], memory: null, memory_note: "" };
}

function news(position: number, more: Partial<Progress> = {}): Progress {
  return { position, status: "stopped", trouble: "", records: {}, live: null, others: null, metas: [], ...more };
}

test("a change is told once, with what changed, and not where nothing did", () => {
  const store = trace();
  const told: string[][] = [];
  const end = store.subscribe((changed) => told.push([...changed]));
  store.update({ t: 0, speed: 30 });
  store.update({ speed: 30 });
  end();
  store.update({ speed: 2 });
  assert.deepEqual(told, [["speed"]]);
});

test("a trace is stepped within its order", () => {
  const store = trace();
  store.step();
  assert.deepEqual([store.state.t, store.running], [1, 1]);
  store.step(10);
  assert.deepEqual([store.state.t, store.running, store.shown], [4, -1, 0]);
  store.back(3);
  store.go(-5);
  assert.equal(store.state.t, 0);
});

test("running on stops before a breakpoint, once", () => {
  const store = trace();
  store.toggleBreakpoint(3);
  store.run();
  assert.equal(store.state.t, 2);
  store.run();
  assert.equal(store.state.t, 4);
});

test("playing stops before a breakpoint and at the end, however many tasks a frame takes", () => {
  const store = trace();
  const player = new Player(store);
  store.toggleBreakpoint(3);
  store.update({ speed: 1000 });
  store.play();
  player.frame(0);
  player.frame(50);
  assert.deepEqual([store.state.t, store.state.playing], [2, false]);
  store.play();
  player.frame(100);
  player.frame(150);
  assert.deepEqual([store.state.t, store.state.playing], [4, false]);
  store.play();
  assert.deepEqual([store.state.t, store.state.playing], [0, true], "from the start again");
});

test("two views of a deck play it at the speed of one", () => {
  const store = trace();
  const player = new Player(store);
  store.update({ speed: 20 });
  store.play();
  for (const now of [0, 0, 50, 50, 100, 100]) player.frame(now);
  assert.equal(store.state.t, 2);
});

test("after a pause playing makes up for nothing", () => {
  const store = trace();
  const player = new Player(store);
  store.update({ speed: 10 });
  store.play();
  player.frame(0);
  player.frame(90);
  store.play();
  player.frame(91);
  store.play();
  player.frame(1000);
  player.frame(1050);
  assert.equal(store.state.t, 0);
});

test("a step at a live session's front runs there; what has run is only shown", () => {
  const { store, asked } = live();
  store.step(3);
  assert.deepEqual([asked, store.state.t], [[["step", 3]], 0], "the position follows the kernel");
  store.progress(news(3));
  assert.equal(store.state.t, 3);
  store.back(2);
  store.step();
  assert.deepEqual([store.state.t, asked.length], [2, 1]);
  store.step(10);
  assert.deepEqual([store.state.t, asked.length], [3, 1], "not beyond the front");
});

test("a reader who looks back stays there while the session goes on", () => {
  const { store } = live();
  store.progress(news(3));
  store.go(1);
  store.select(3);
  store.progress(news(4, { status: "finished" }));
  assert.deepEqual([store.state.t, store.state.front, store.state.selected], [1, 4, 3]);
});

test("a live session that plays stops at breakpoints, and where it fails", () => {
  for (const [told, plays] of [
    [news(1), true],
    [news(1, { status: "running" }), true],
    [news(2), false],
    [news(4, { status: "finished" }), false],
    [news(1, { status: "failed", trouble: "no" }), false],
  ] as const) {
    const { store } = live();
    store.toggleBreakpoint(3);
    store.play();
    store.progress(told);
    assert.equal(store.state.playing, plays, JSON.stringify(told));
  }
});

test("from what has run, running on stops at the breakpoint before which the session stands", () => {
  const { store, asked } = live();
  store.toggleBreakpoint(3);
  store.progress(news(2));
  store.go(0);
  store.run();
  assert.deepEqual([store.state.t, asked], [2, []]);
  store.run();
  assert.deepEqual(asked, [["run"]]);
});

test("what a failed session has run is played from its start, and no further than that", () => {
  const { store, asked } = live();
  const player = new Player(store);
  store.progress(news(2, { status: "failed", trouble: "no" }));
  store.update({ speed: 1000 });
  store.play();
  assert.deepEqual([store.canPlay, store.state.playing, store.failed], [false, false, 3], "from its end nothing goes on");
  store.go(0);
  store.play();
  assert.deepEqual([store.state.playing, store.failed], [true, -1]);
  player.frame(0);
  player.frame(90);
  assert.deepEqual([store.state.t, store.state.playing, asked], [2, false, []]);
});

test("the shown policy stays the shown one when the session goes on under another", () => {
  const { store } = live();
  const [heap, bfs] = store.schedules;
  store.show(1);
  const replay = store.replayOf(1);
  store.progress(news(1, { live: planOf("heap", [2, 3, 1, 0]) }));
  assert.deepEqual([store.state.tab, store.schedules[0].order], [1, [2, 3, 1, 0]]);
  assert.equal(store.replay, replay, "it is not replayed again");
  store.progress(news(1, { live: bfs, others: [heap] }));
  assert.deepEqual([store.state.tab, store.replay.schedule.policy], [0, "bfs"]);
});

test("a live session whose end was only planned is shown as planned", () => {
  const { store } = live();
  store.progress(news(2));
  assert.equal(store.isAhead, false);
  store.go(4);
  assert.equal(store.isAhead, true);
  store.show(1);
  assert.equal(store.isAhead, false, "another policy's simulation is whole");
});

test("what a saved page of a half-run session has not run is shown as planned, and other policies as simulated", () => {
  const schedules = [planOf("heap"), planOf("bfs")];
  const store = new Store({ ...smallDocument(), position: 2, schedules }, null);
  assert.deepEqual([store.state.t, store.state.status, store.unreal], [2, "trace", null], "it opens where the deck stood");
  store.go(4);
  assert.deepEqual([store.isAhead, store.ran, store.unreal], [true, 2, "planned"]);
  store.show(1);
  assert.deepEqual([store.isAhead, store.ran, store.unreal], [false, 0, "simulated"]);
});

test("a search means tasks that have each of its words somewhere", () => {
  const store = trace();
  const found = (query: string) => {
    store.find(query);
    return store.state.matches && [...store.state.matches].flatMap((match, task) => (match ? [task] : []));
  };
  assert.deepEqual(found("  "), null);
  assert.deepEqual(found("MM"), [1]);
  assert.deepEqual(found("encoder"), [0, 1, 3], "by module and by parameter");
  assert.deepEqual(found("encoder relu"), [0]);
  assert.deepEqual(found("#2"), [2]);
  assert.deepEqual(found("torch"), [], "not by a namespace that is not shown");
  assert.deepEqual(found("cpu"), []);
});
