/** The state of a deck, during playback of a recording and in a live session. */

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Schedule } from "../src/model/document.ts";
import { Player } from "../src/player.ts";
import { type Link, type Progress, Store } from "../src/store.ts";
import { smallDocument } from "./small_document.ts";

/** Calls to the kernel's link. */
type Asked = [name: string, ...given: unknown[]][];

function trace(): Store {
  return new Store(smallDocument(), null);
}

/** A session of four tasks that run in the order 2, 1, 3, 0. */
function live(): { store: Store; asked: Asked; link: { busy: boolean } } {
  const asked: Asked = [];
  const note = (name: string) => (...given: unknown[]) => void asked.push([name, ...given]);
  const link: Link & { busy: boolean } = {
    busy: false,
    step: note("step"),
    stepTask: note("stepTask"),
    runTo: note("runTo"),
    run: note("run"),
    stop: note("stop"),
    setPolicy: note("setPolicy"),
    inspect: note("inspect"),
    ask: note("ask"),
  };
  const store = new Store({ ...smallDocument(), position: 0, schedules: [planOf("heap"), planOf("bfs")] }, link);
  return { store, asked, link };
}

function planOf(policy: string, order = [2, 1, 3, 0]): Schedule {
  return { policy, title: "", order, keys: "created", by_hand: [], memory: null, memory_note: "" };
}

function news(position: number, more: Partial<Progress> = {}): Progress {
  return {
    position, status: "stopped", trouble: "", stopped: null, history: null, forgotten: [], records: {}, checks: {},
    live: null, others: null, branches: null, metas: [], ...more,
  };
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

test("what comes due while the kernel is busy it is given at once then, and a pause stops it", () => {
  const { store, asked, link } = live();
  const player = new Player(store);
  store.update({ speed: 30 });
  store.play();
  player.frame(0);
  link.busy = true;
  for (const now of [40, 80, 110]) player.frame(now);
  assert.deepEqual(asked, [], "it waits");
  link.busy = false;
  player.frame(120);
  assert.deepEqual(asked.splice(0), [["step", 3]]);
  link.busy = true;
  for (let now = 120; now < 3000; now += 20) player.frame(now);
  link.busy = false;
  player.frame(3000);
  assert.deepEqual(asked.splice(0), [["step", 7]], "but not more than a quarter of a second's, so that it can be stopped");
  link.busy = true;
  store.play();
  assert.deepEqual([asked, store.state.playing], [[["stop"]], false]);
});

test("playing says what speed it comes to, where that is less than what was asked for", () => {
  const { store, link } = live();
  const player = new Player(store);
  store.update({ speed: 1000 });
  store.play();
  link.busy = true;
  player.frame(0);
  for (const [now, front] of [[500, 1], [1000, 2]]) {
    store.progress(news(front));
    player.frame(now);
  }
  assert.equal(store.state.reached, 2);
  store.play();
  player.frame(1020);
  assert.equal(store.state.reached, null, "nothing plays");
  const other = trace();
  const quick = new Player(other);
  other.update({ speed: 2 });
  other.play();
  for (let now = 0; now <= 1100; now += 20) quick.frame(now);
  assert.deepEqual([other.state.t, other.state.reached], [2, null], "it keeps up");
});

test("who jumps ahead and plays then is played on from there: the session comes after", () => {
  const { store, asked } = live();
  const player = new Player(store);
  store.update({ speed: 20 });
  store.go(2);
  store.play();
  player.frame(0);
  player.frame(50);
  assert.deepEqual([asked, store.state.t], [[["step", 3]], 2]);
  store.progress(news(0, { status: "running" }));
  store.progress(news(1, { status: "running" }));
  assert.deepEqual([store.state.t, store.state.playing], [2, true], "meanwhile nothing is played twice");
  store.progress(news(3));
  assert.deepEqual([store.state.t, store.state.playing], [3, true]);
});

test("where a breakpoint stops the session on its way to a reader who has jumped ahead, he is taken there", () => {
  const { store } = live();
  store.toggleBreakpoint(1);
  store.go(3);
  store.play();
  store.progress(news(1));
  assert.deepEqual([store.state.t, store.state.playing], [1, false]);
});

test("ahead of where a session stands steps look on in its plan, and the session stays; run goes on with it", () => {
  const { store, asked } = live();
  store.progress(news(1));
  store.go(2);
  store.step();
  assert.deepEqual([store.state.t, store.isAtFront], [3, false]);
  store.back();
  store.stepOver();
  assert.equal(store.state.t, 3);
  store.end();
  store.step();
  assert.deepEqual([store.state.t, asked], [4, []]);
  store.back(3);
  assert.equal(store.isAtFront, true);
  store.step();
  store.go(3);
  store.run();
  assert.deepEqual(asked, [["step", 1], ["run"]]);
});

test("a histogram's axis is that of all tasks, and only ever grows", () => {
  const { store } = live();
  const record = (first_bin: number) => {
    return { inputs: [{ meta: 0, first_bin, bins: [1] }], outputs: [], elapsed_ns: 1 };
  };
  assert.equal(live().store.decades, null);
  store.progress(news(1, { records: { 2: record(48) } }));
  const { decades } = store;
  store.progress(news(2, { records: { 1: record(48) } }));
  store.go(0);
  assert.deepEqual(store.decades, decades, "it stays from task to task");
  store.progress(news(3, { records: { 3: record(40) } }));
  assert.deepEqual([decades?.least, decades?.most], [-6, -4]);
  assert.deepEqual([store.decades?.least, store.decades?.most], [-10, -4]);
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

test("what plays stops where the kernel says so, and not before each task that a breakpoint may stop at", () => {
  const { store } = live();
  store.update({ stops: [{ number: 1, kind: "break", text: "*", enabled: true, hits: 0, tasks: [0, 1, 3], calls: [] }] });
  store.play();
  store.progress(news(1));
  assert.equal(store.state.playing, true, "its condition may not hold");
  const stopped = { text: "breakpoint 1 (*)", lines: [], task: 3, number: 1, why: "breakpoint" } as const;
  store.progress(news(2, { stopped: { ...stopped, lines: [] } }));
  assert.deepEqual([store.state.playing, store.state.stopped?.task], [false, 3]);
  store.progress(news(3));
  assert.equal(store.state.stopped, null, "it has moved on");
});

test("what has run is played up to what any enabled breakpoint may stop at", () => {
  const { store, asked } = live();
  const stops = [
    { number: 1, kind: "break", text: "Relu", enabled: false, hits: 0, tasks: [3] },
    { number: 2, kind: "break", text: "Mm", enabled: true, hits: 0, tasks: [1] },
  ] as const;
  store.update({ stops: stops.map((each) => ({ ...each, tasks: [...each.tasks], calls: [] })) });
  store.progress(news(3));
  store.go(0);
  store.run();
  assert.equal(store.state.t, 1);
  store.run();
  assert.deepEqual([store.state.t, asked], [1, [["run"]]], "nothing else stops what has run: the session runs on");
});

test("another policy enters a module elsewhere, and is stopped there", () => {
  const { store } = live();
  store.update({ stops: [{ number: 1, kind: "break", text: "net", enabled: true, hits: 0, tasks: [0, 1], calls: [4, 4] }] });
  assert.deepEqual([...store.state.marks.keys()], [1]);
  const { marks } = store.state;
  store.progress(news(1, { others: [planOf("bfs", [2, 0, 3, 1])] }));
  assert.equal(store.state.marks, marks, "as long as its order is the same, so that little is drawn anew");
  store.show(1);
  assert.deepEqual([...store.state.marks.keys()], [0]);
});

test("a module is stepped over by the kernel at a session's front, and in what has run on the page", () => {
  const { store, asked } = live();
  store.stepOver();
  store.stepOver(true);
  assert.deepEqual(asked.splice(0), [["ask", { kind: "step_over" }], ["ask", { kind: "step_out" }]]);
  store.progress(news(2));
  store.go(1);
  store.stepOver();
  assert.deepEqual([store.state.t, asked], [2, []], "not beyond the front");
});

test("a session that is taken back forgets what was recorded, and who looks there goes along", () => {
  const { store, asked } = live();
  const record = { inputs: [], outputs: [], elapsed_ns: 1 };
  const history = { bytes: 3, gradient_bytes: 2, saved_bytes: 1, reach: 1 };
  store.progress(news(3, { records: { 2: record, 1: record, 3: record }, history }));
  store.go(0);
  assert.equal(store.canRewind, false, "its history begins later");
  store.go(1);
  store.rewind();
  assert.deepEqual([asked, store.state.front], [[["ask", { kind: "rewind", position: 1 }]], 3]);
  store.go(2);
  store.progress(news(1, { forgotten: [1, 3], records: { 1: { ...record, elapsed_ns: null } }, history }));
  assert.deepEqual([store.state.front, store.state.t, store.running], [1, 1, 1]);
  assert.deepEqual([store.record(3), store.record(1)?.elapsed_ns, store.record(2)], [undefined, null, record]);
  assert.equal(store.canRewind, false, "here it stands");
});

test("a branch is shown as far as it ran, with what was recorded before it parted, and can be gone on from", () => {
  const { store, asked } = live();
  const record = { inputs: [], outputs: [], elapsed_ns: 1 };
  const branch = { number: 1, parent: null, forked_at: 1, ran: 3, current: false, text: "branch 1, 3 tasks under heap" };
  const others = [planOf("bfs"), planOf("branch 1", [2, 1, 0, 3])];
  store.progress(news(2, { others, branches: [branch], records: { 2: record, 1: record } }));
  store.show(1);
  assert.deepEqual([store.isSimulated, store.branch, store.ran], [true, null, 0]);
  store.show(2);
  assert.deepEqual([store.isSimulated, store.branch, store.ran], [false, branch, 2]);
  assert.deepEqual([store.record(2), store.record(1)], [record, undefined]);
  store.go(4);
  assert.deepEqual([store.unreal, store.ran], ["planned", 3]);
  store.takeBranch();
  assert.deepEqual([asked, store.state.tab], [[["ask", { kind: "branch", number: 1 }]], 0]);
});

test("what a saved page has of a branch has run, as far as it came", () => {
  const branches = [{ number: 1, parent: null, forked_at: 0, ran: 3, current: false, text: "branch 1" }];
  const schedules = [planOf("heap"), planOf("branch 1", [2, 1, 0, 3])];
  const store = new Store({ ...smallDocument(), position: 1, schedules, branches }, null);
  store.show(1);
  store.go(4);
  assert.deepEqual([store.isSimulated, store.ran, store.unreal], [false, 3, "planned"]);
});

test("a check waits for its answer, or for what is wrong", () => {
  const { store } = live();
  store.check(2);
  assert.equal(store.state.checking, 2);
  store.progress(news(0, { trouble: "ValueError: no" }));
  assert.deepEqual([store.state.checking, store.state.checks], [null, {}]);
  store.progress(news(0, { checks: { 2: { ok: true, lines: [] } } }));
  store.progress(news(1));
  assert.deepEqual(store.state.checks, { 2: { ok: true, lines: [] } }, "it is kept");
});

test("without a kernel breakpoints are switched off and deleted on the page", () => {
  const store = trace();
  store.toggleBreakpoint(3);
  const [stop] = store.state.stops;
  store.enable(stop.number, false);
  store.run();
  assert.deepEqual([store.state.t, [...store.state.marks]], [4, [[3, false]]]);
  store.remove(stop);
  assert.deepEqual([store.state.stops, store.state.marks.size, store.state.breakpoints.size], [[], 0, 0]);
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
  assert.deepEqual(found("linear"), [0, 1], "by the class of a module, which its box says");
  assert.deepEqual(found("#2"), [2]);
  assert.deepEqual(found("torch"), [], "not by a namespace that is not shown");
  assert.deepEqual(found("cpu"), []);
});
