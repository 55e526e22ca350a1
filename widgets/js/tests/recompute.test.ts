/** Recomputation: the tensors that tasks drop and recompute, the plan's curves, and the signs in the picture. */

import assert from "node:assert/strict";
import { nth } from "../src/format.ts";
import { test } from "node:test";
import { FactFinder } from "../src/graph/frame_state.ts";
import { svgPicture, wholeOf } from "../src/graph/export_picture.ts";
import { tipOfSpot } from "../src/graph/tooltips.ts";
import { checkDocument, DocumentError } from "../src/model/check_document.ts";
import { curvesOf, levelsOfCurve } from "../src/model/recompute_curves.ts";
import type { Curve, DeckDocument, Schedule } from "../src/model/document.ts";
import { DeckGraph } from "../src/model/graph.ts";
import { recomputeMarks, replays, replayTimes } from "../src/model/recompute.ts";
import { Replay } from "../src/model/replay.ts";
import { fate, savedBy } from "../src/model/saved_tensors.ts";
import type { Colours } from "../src/view_types.ts";
import { smallDocument } from "./small_document.ts";
import { smallScene } from "./small_scene.ts";

const KB = 1024;
const GONE = 2 ** 30;
const PLANNED: NonNullable<Schedule["replays"]> = {
  task: [1], storage: [GONE], count: [3], bytes: [6 * KB], ns: [650_000], kept: [1], kept_bytes: [2 * KB],
};

/** Mm (task 1) and Relu (task 0) save one storage that was dropped; Mm runs first. */
function recomputed(document: DeckDocument, plan?: Schedule["replays"]): DeckDocument {
  const made = document.texts.push("gelu and <addmm>") - 1;
  document.saved = {
    task: [0, 1, 1], slot: [7, 7, 7], storage: [GONE, GONE, 5], bytes: [2 * KB, 2 * KB, 64], meta: [0, 0, 0],
    parameter: [-1, -1, -1], held: [0, 0, 0], made_by: [made, made, -1],
  };
  if (plan) document.schedules[0].replays = plan;
  return document;
}

function replayOf(document: DeckDocument): Replay {
  return new Replay(new DeckGraph(document), document.schedules[0]);
}

test("without a plan the first task that saves it recomputes it, and the time is unknown", () => {
  const replay = replayOf(recomputed(smallDocument()));
  const marks = recomputeMarks(replay);
  assert.deepEqual([...marks.keys()].toSorted(), [0, 1]);
  assert.equal(marks.get(0)?.recomputed, null);
  assert.deepEqual(marks.get(1), {
    count: 1, bytes: 2 * KB, recomputed: { count: 1, bytes: 2 * KB, ns: null, kept: 0, keptBytes: 0 },
  });
  assert.equal(replays(replay, 1), "recomputes 1 first");
  assert.equal(recomputeMarks(replayOf(smallDocument())).size, 0);
});

test("a plan tells the recompute time and the number of intermediates", () => {
  const replay = replayOf(recomputed(smallDocument(), PLANNED));
  assert.equal(replays(replay, 1), "recomputes 3 first, 0.65 ms");
  assert.equal(replayTimes(replay, 1), "planned 0.65 ms");
  const [first] = savedBy(replay, 1);
  const place = replay.place[1] + 1;
  const said = `dropped, recomputed by gelu and <addmm> as the ${nth(place)} runs, in 0.65 ms as planned, with 2 intermediates`;
  assert.ok(fate(replay, first, 0).startsWith(said), fate(replay, first, 0));
  assert.deepEqual([replays(replay, 0), replayTimes(replay, 0)], ["", ""]);
});

test("measured recompute time stands beside the planned one", () => {
  const document = recomputed(smallDocument(), PLANNED);
  document.replayed = { 1: [3, 12_340_000] };
  const replay = replayOf(document);
  assert.equal(replays(replay, 1), "recomputed 3 in 12.3 ms");
  assert.equal(replayTimes(replay, 1), "12.3 ms, planned 0.65 ms");
});

test("a curve's levels by task are its highest, and it is drawn through each of them", () => {
  const curve: Curve = { name: "plain", starts: [0, 2, 2, 5], levels: [4, 9, 3, 7, 1, 2] };
  const levels = levelsOfCurve(curve);
  assert.deepEqual([...levels.taskLevels], [9, 3, 7, 2]);
  assert.equal(levels.peak, 9);
  const { times, total: drawn } = levels.steps((time) => Math.floor(500 * time));
  assert.deepEqual([...drawn], curve.levels);
  assert.deepEqual([...times].map((time) => Math.floor(time)), [0, 0, 0, 2, 2, 2]);
  assert.deepEqual(new Set(levels.steps(() => 0).total), new Set([9, 1, 2]), "of one column the extremes and the last");
});

test("the plan's own memory is not drawn twice", () => {
  const [schedule] = smallDocument().schedules;
  const curves: Curve[] = (["plain", "planned"] as const).map((name) => ({ name, starts: [0], levels: [0] }));
  const named = (basis: "measured" | "calibrated") => {
    const memory = { basis } as Schedule["memory"];
    return curvesOf({ ...schedule, curves, memory }).map(({ name }) => name);
  };
  assert.deepEqual([named("measured"), named("calibrated")], [["plain", "planned"], ["plain"]]);
});

test("replays and curves that lead nowhere are found", () => {
  const curve: Curve = { name: "plain", starts: [0, 1, 1, 2, 2], levels: [1, 2, 1] };
  const damages: ((document: DeckDocument) => void)[] = [
    ({ schedules }) => schedules[0].replays?.task.push(0),
    ({ schedules }) => ((schedules[0].replays as { task: number[] }).task[0] = 4),
    ({ schedules }) => schedules[0].curves?.[0].starts.pop(),
    ({ schedules }) => ((schedules[0].curves as Curve[])[0].starts[2] = 3),
    ({ schedules }) => ((schedules[0].curves as Curve[])[0].levels[0] = NaN),
  ];
  for (const damage of damages) {
    const document = recomputed(smallDocument(), structuredClone(PLANNED));
    document.schedules[0].curves = [structuredClone(curve)];
    assert.doesNotThrow(() => checkDocument(document));
    damage(document);
    assert.throws(() => checkDocument(document), DocumentError, String(damage));
  }
});

const colours = new Proxy({}, { get: (_, name) => String(name) }) as Colours;

test("tasks and closed boxes carry signs, with tooltips and a legend", () => {
  for (const closed of [false, true]) {
    const { store, scene } = smallScene(closed, `<script>"x"&`);
    recomputed(store.document, PLANNED);
    const facts = new FactFinder(store).at(scene);
    const bytes = new Float64Array(3);
    const picture = svgPicture({ facts, colours, bytes, title: "Tiny", ...wholeOf(facts) }, () => 40);
    assert.doesNotMatch(picture, /<script/);
    const titles = [...picture.matchAll(/<g><title>(.*?)<\/title>/gs)].map(([, title]) => title);
    const first = "recomputes 3 tensors, 6 KiB first, in 0.65 ms as planned\nnewly keeps 1 tensor, 2 KiB for that";
    const whole = [`drops 2 saved tensors, 4 KiB\n${first}`];
    const apart = [`drops 1 saved tensor, 2 KiB\n${first}`, "drops 1 saved tensor, 2 KiB"];
    assert.deepEqual(titles, closed ? whole : apart);
    for (const words of ["dropped", "recomputed", "newly kept"]) assert.match(picture, new RegExp(`>${words}<`));
    assert.equal((picture.match(/stroke-dasharray="2 1.6"/g) ?? []).length, 2, "dropped is dashed, there and in the legend");
  }
});

test("a tooltip says it, too, and without recomputation there is neither sign nor legend", () => {
  const { store, scene } = smallScene(false);
  const plain = new FactFinder(store).at(scene);
  const bytes = new Float64Array(3);
  assert.doesNotMatch(svgPicture({ facts: plain, colours, bytes, title: "", ...wholeOf(plain) }, () => 40), /dropped/);
  const other = smallScene(false);
  recomputed(other.store.document, PLANNED);
  const facts = new FactFinder(other.store).at(other.scene);
  const tip = tipOfSpot(other.store, facts, other.scene.spots[other.scene.spotOf[1]]);
  assert.match(tip, /\ndrops 1 saved tensor, 2 KiB\nrecomputes 3 tensors, 6 KiB first, in 0\.65 ms as planned\n/);
});
