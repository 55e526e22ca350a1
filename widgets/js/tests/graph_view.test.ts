import assert from "node:assert/strict";
import { test } from "node:test";
import { BoxCounts } from "../src/graph/box_counts.ts";
import { areaOf, fitView, followView, kept, reveal, scaledAbout } from "../src/graph/camera.ts";
import { damageBetween } from "../src/graph/dirty_area.ts";
import { cardText } from "../src/graph/draw_folded.ts";
import { wireState } from "../src/graph/draw_wires.ts";
import { FactFinder, opacityOf, shareOf, stateOf } from "../src/graph/frame_state.ts";
import { Grid } from "../src/graph/spatial_index.ts";
import { hitAt, wiresNear } from "../src/graph/hit_test.ts";
import { Motion } from "../src/graph/layout_animation.ts";
import { DOWNSTREAM, reachOf, UPSTREAM, wiresOf } from "../src/graph/upstream_downstream.ts";
import { stateInWords } from "../src/graph/tooltips.ts";
import { Scene } from "../src/graph/scene.ts";
import { WireIndex } from "../src/graph/wire_index.ts";
import { layOut } from "../src/layout/layout.ts";
import type { Rect } from "../src/layout/layout_types.ts";
import { makeTree } from "../src/layout/box_tree.ts";
import { Store } from "../src/store.ts";
import { chain, documentOf, unrolled } from "./graphs.ts";
import { CARD, MM, OPEN_BOX, smallScene, SUM, WEIGHT } from "./small_scene.ts";

const SCREEN = { width: 400, height: 300 };

test("a grid finds what a look at every rectangle finds", () => {
  let seed = 7;
  const random = (most: number) => {
    seed = (seed * 16807) % 2147483647;
    return seed % most;
  };
  const rects = Array.from({ length: 500 }, () => ({
    x: random(3000), y: random(2000), width: 1 + random(300), height: 1 + random(40),
  }));
  const grid = new Grid(rects, 3300, 2040);
  for (let trial = 0; trial < 50; trial++) {
    const area = { x: random(3600) - 200, y: random(2400) - 200, width: random(900), height: random(700) };
    const touching = rects.flatMap((rect, index) => {
      const apart =
        rect.x > area.x + area.width || area.x > rect.x + rect.width ||
        rect.y > area.y + area.height || area.y > rect.y + rect.height;
      return apart ? [] : [index];
    });
    assert.deepEqual(grid.search(area).sort((one, other) => one - other), touching);
  }
});

test("the pointer hits tasks before boxes, and of an open box only its header", () => {
  const { scene } = smallScene(false);
  const at = (x: number, y: number) => hitAt(scene, x, y, 1);
  assert.deepEqual(at(MM.x + 5, MM.y + 5), { spot: scene.spots[1] });
  assert.deepEqual(at(WEIGHT.x + 1, WEIGHT.y + 1), { spot: scene.spots[3] });
  assert.deepEqual(at(OPEN_BOX.x + 5, OPEN_BOX.y + 5), { box: scene.layout.boxes[0] });
  assert.equal(at(OPEN_BOX.x + 5, OPEN_BOX.y + 80), null);
  assert.equal(at(-50, -50), null);
  const closed = smallScene(true).scene;
  assert.deepEqual(hitAt(closed, CARD.x + 5, CARD.y + 40, 1), { box: closed.layout.boxes[0] });
});

test("the wires near a point are those whose lines are, wherever their bounds are", () => {
  const { scene } = smallScene(false);
  const at = (x: number, y: number) => wiresNear(scene, x, y, 1).map(({ edges }) => edges[0]);
  assert.deepEqual(at(71, 50), [2]);
  assert.deepEqual(at(70, 110), [0]);
  assert.deepEqual(at(105, 92), [1]);
  assert.deepEqual(at(30, 50), []);
  const around = new WireIndex([{ points: [0, 0, 0, 900, 900, 900] }], { width: 900, height: 900 });
  assert.deepEqual([...around.near(450, 450, 4)], []);
  assert.deepEqual([...around.near(450, 898, 4)], [0]);
});

test("a task in a closed box is where the box is", () => {
  const { scene } = smallScene(true);
  assert.deepEqual(scene.rectOf(1), CARD);
  assert.deepEqual(scene.rectOf(2), SUM);
  assert.equal(scene.cardAround(1)?.box.id, 1);
  assert.equal(scene.cardAround(2), null);
});

test("a closed box counts as its tasks do one by one, at every position", () => {
  const { scene, store } = smallScene(true);
  const counts = new BoxCounts(scene, store.replay);
  for (let t = 0; t <= 4; t++) {
    const states = [0, 1, 3].map((task) => store.replay.state(task, t));
    const many = (state: string) => states.filter((each) => each === state).length;
    const found = counts.at(0, t, t);
    assert.equal(found.done, many("done"));
    assert.equal(found.ready, many("ready"));
    assert.equal(found.running >= 0, many("running") === 1);
    assert.equal(found.size, 3);
  }
});

test("a wire waits between the task that made its gradient and the one that takes it", () => {
  const { store } = smallScene(false);
  const states = [0, 1, 2, 3, 4].map((t) => wireState([0], store.graph, store.replay, t)); // Mm to Relu
  assert.deepEqual(states, ["not yet", "out", "waits", "into", "consumed"]);
  assert.equal(wireState([0, 1], store.graph, store.replay, 3), "into");
});

test("reach tells upstream from downstream, and leaves the rest faded", () => {
  const { scene, store } = smallScene(false);
  const reach = reachOf(store.graph, 1);
  assert.deepEqual([reach.upstream, reach.downstream], [1, 2]);
  assert.deepEqual([...wiresOf(reach, scene)], [UPSTREAM, DOWNSTREAM, DOWNSTREAM]);
  store.update({ selected: 0 });
  const facts = new FactFinder(store).at(scene);
  assert.equal(opacityOf(facts, 1), 1);
  assert.ok(opacityOf(facts, 3) < 0.5); // the parameter is a sibling
});

test("a search fades what it has not found while it is typed, and lets go of the colours then", () => {
  const { scene, store } = smallScene(false);
  const finder = new FactFinder(store);
  store.update({ searching: true });
  store.find("relu");
  const facts = finder.at(scene);
  assert.equal(opacityOf(facts, 0), 1);
  assert.equal(opacityOf(facts, 3), 0.35);
  assert.ok(opacityOf(facts, 1) > 0.35); // upstream of the only match
  store.update({ searching: false, selected: 0 });
  const after = finder.at(scene);
  assert.deepEqual([0, 1, 2, 3].map((task) => opacityOf(after, task)), [1, 1, 1, 1]);
  assert.deepEqual([...(after.matches ?? [])], [1, 0, 0, 0], "they keep their ring");
});

test("fitting shows all of the picture, in the middle", () => {
  const view = fitView({ width: 4000, height: 1000 }, SCREEN);
  const area = areaOf(view, SCREEN);
  assert.ok(area.x <= 0 && area.y <= 0 && area.x + area.width >= 4000 && area.y + area.height >= 1000);
  assert.ok(Math.abs(area.x + area.width / 2 - 2000) < 1e-6);
});

test("zooming keeps the point under the pointer", () => {
  const view = { x: 13, y: -7, k: 0.8 };
  const scaled = scaledAbout(view, 1.7, 90, 40);
  assert.ok(Math.abs((90 - view.x) / view.k - (90 - scaled.x) / scaled.k) < 1e-9);
  assert.ok(Math.abs((40 - view.y) / view.k - (40 - scaled.y) / scaled.k) < 1e-9);
});

test("opening a box keeps its corner where it was on the screen", () => {
  const view = { x: 13, y: -7, k: 0.8 };
  const next = kept(view, CARD, { ...OPEN_BOX, x: 500, y: 900 });
  assert.ok(Math.abs(CARD.x * view.k + view.x - (500 * next.k + next.x)) < 1e-9);
  assert.ok(Math.abs(CARD.y * view.k + view.y - (900 * next.k + next.y)) < 1e-9);
});

test("following shows a small graph whole, and moves in a large one only when it must", () => {
  const { scene } = smallScene(false);
  assert.deepEqual(followView(scene, SCREEN, null, 1), fitView(scene.layout, SCREEN));
  const large = Object.assign(Object.create(scene), {
    layout: { ...scene.layout, width: 5000, height: 4000 },
    rectOf: () => ({ x: 2000, y: 1500, width: 60, height: 20 }),
    boxesAround: () => [],
  });
  const first = followView(large, SCREEN, null, 1);
  assert.ok(first);
  assert.equal(followView(large, SCREEN, first, 1), first);
  const away = { ...first, x: first.x - 300 };
  const moved = followView(large, SCREEN, away, 1);
  assert.ok(moved && moved.x !== away.x);
  const across = ((2000 + 30) * moved.k + moved.x) / SCREEN.width;
  assert.ok(across >= 0.15 && across <= 0.85);
});

test("revealing moves no further than needed", () => {
  const view = { x: 0, y: 0, k: 1 };
  assert.deepEqual(reveal(view, SCREEN, { x: 100, y: 100, width: 60, height: 20 }), view);
  assert.deepEqual(reveal(view, SCREEN, { x: 500, y: 100, width: 60, height: 20 }), { x: -184, y: 0, k: 1 });
});

test("tasks come out of the card that opens, and go back into it", () => {
  const [open, closed] = [smallScene(false).scene, smallScene(true).scene];
  const opening = new Motion(closed, open, 1000, { from: { x: 0, y: 0, k: 1 }, to: { x: 10, y: 0, k: 1 } });
  assert.deepEqual(opening.box(0, 0), CARD);
  assert.deepEqual(opening.spot(1, 1), MM);
  const start = opening.spot(1, 0);
  assert.ok(start.x >= CARD.x && start.x + start.width <= CARD.x + CARD.width);
  assert.equal(opening.share(1000), 0);
  assert.equal(opening.share(5000), 1);
  assert.deepEqual(opening.view(1), { x: 10, y: 0, k: 1 });
  const closing = new Motion(open, closed, 0, { from: { x: 0, y: 0, k: 1 }, to: { x: 0, y: 0, k: 1 } });
  assert.deepEqual(closing.leaving.map(({ spot }) => spot.task).sort(), [0, 1, 3]);
});

test("what a step changes is inside of what is drawn anew", () => {
  for (const closed of [false, true]) {
    const { scene, store } = smallScene(closed);
    const finder = new FactFinder(store);
    for (let from = 0; from <= 4; from++) {
      for (let to = 0; to <= 4; to++) {
        store.go(from);
        const before = finder.at(scene);
        store.go(to);
        const after = finder.at(scene);
        const damage = damageBetween(before, after, 1);
        if (from === to) {
          assert.equal(damage, "none");
          continue;
        }
        assert.ok(typeof damage === "object");
        const holds = (x: number, y: number, width: number, height: number) =>
          damage.x <= x && damage.y <= y && damage.x + damage.width >= x + width && damage.y + damage.height >= y + height;
        const look = (facts: typeof before, index: number) => {
          const spot = scene.spots[index];
          return [stateOf(facts, spot), shareOf(facts, spot.task), facts.queuePlaces.get(spot.task), facts.ringed === spot.task];
        };
        scene.spots.forEach(({ rect }, index) => {
          const same = JSON.stringify(look(before, index)) === JSON.stringify(look(after, index));
          assert.ok(same || holds(rect.x, rect.y, rect.width, rect.height), `task ${index} from ${from} to ${to}`);
        });
        scene.wires.forEach(({ edges, bounds }, index) => {
          const [one, other] = [from, to].map((t) => wireState(edges, store.graph, store.replay, t));
          const whole = holds(bounds.x, bounds.y, bounds.width, bounds.height);
          assert.ok(one === other || whole, `wire ${index} from ${from} to ${to}`);
        });
        const counts = (facts: typeof before) => JSON.stringify(facts.counts.at(0, facts.t, facts.ran));
        if (closed && counts(before) !== counts(after)) assert.ok(holds(CARD.x, CARD.y, CARD.width, CARD.height));
      }
    }
  }
});

test("of equal layers that are drawn once each wire is drawn anew that a step changes, from whatever layer it comes", () => {
  const cells = unrolled(4, 3);
  const count = cells.names.length + 1;
  const store = new Store(documentOf({ ...cells, names: [...cells.names, "SumBackward0"], edges: chain(count).edges }), null);
  const tree = makeTree(store.graph);
  assert.ok(tree.layersOf.size, "they are drawn once");
  const layout = layOut(tree, new Set(tree.boxes.keys()));
  for (const { kind, points } of layout.wires) if (kind === "gradient") points[1] -= 100; // as if they started far away
  const scene = new Scene(store.graph, tree, layout);
  const finder = new FactFinder(store);
  for (let from = 0; from <= count; from++) {
    for (let to = 0; to <= count; to++) {
      store.go(from);
      const before = finder.at(scene);
      const was = scene.wires.map(({ edges }) => wireState(edges, store.graph, store.replay, from));
      store.go(to);
      const damage = damageBetween(before, finder.at(scene), 1);
      scene.wires.forEach(({ edges, bounds }, index) => {
        const isSame = wireState(edges, store.graph, store.replay, to) === was[index];
        assert.ok(isSame || damage === "all" || covers(damage, bounds), `wire ${index} from ${from} to ${to}`);
      });
    }
  }
});

test("a wire out of equal layers is quiet while a gradient comes into them from elsewhere", () => {
  const cells = unrolled(4, 3);
  const count = cells.names.length + 1;
  const store = new Store(documentOf({ ...cells, names: [...cells.names, "SumBackward0"], edges: chain(count).edges }), null);
  const tree = makeTree(store.graph);
  const scene = new Scene(store.graph, tree, layOut(tree, new Set(tree.boxes.keys())));
  store.go(0); // the sum runs
  new FactFinder(store).at(scene);
  const [out] = scene.wires.filter(({ kind }) => kind === "out");
  assert.equal(wireState(out.edges, store.graph, store.replay, 0), "not yet");
});

test("a gradient that waits for the next of equal layers is drawn within them, not up to a task outside", () => {
  const blocks = 4;
  const inside = ["ConvolutionBackward0", "NativeBatchNormBackward0", "ReluBackward0"];
  const names = ["MaxPoolBackward0", ...Array(blocks).fill(inside).flat(), "MeanBackward0"];
  const calls = Array.from({ length: blocks }, (_, block) => ({ path: `blocks.${block}`, className: "Block", parent: -1 }));
  const callOf = names.map((_, task) => (task && task < names.length - 1 ? Math.floor((task - 1) / inside.length) : -1));
  // the input of each block is also added to its result, so that its gradient waits
  const skips = Array.from({ length: blocks }, (_, block): [number, number] => [3 * block + 3, 3 * block]);
  const store = new Store(documentOf({ ...chain(names.length), names, edges: [...chain(names.length).edges, ...skips], calls, callOf }), null);
  const tree = makeTree(store.graph);
  assert.ok(tree.layersOf.size, "they are drawn once");
  const scene = new Scene(store.graph, tree, layOut(tree, new Set(tree.boxes.keys())));
  const finder = new FactFinder(store);
  const { next, task } = store.document.edges;
  let waiting = 0;
  for (let t = 0; t <= names.length; t++) {
    store.go(t);
    finder.at(scene);
    for (const { edges, points } of scene.wires) {
      if (wireState(edges, store.graph, store.replay, t) !== "waits") continue;
      waiting++;
      const [x, y, toX, toY] = [...points.slice(0, 2), ...points.slice(-2)];
      const touches = ({ x: left, y: top, width, height }: Rect, a: number, b: number) => a >= left && a <= left + width && b >= top && b <= top + height;
      scene.spots.forEach(({ tasks, rect }) => {
        if (touches(rect, toX, toY)) assert.ok(edges.some((edge) => tasks.includes(next[edge])), `into ${tasks} at ${t}`);
        if (touches(rect, x, y)) assert.ok(edges.some((edge) => tasks.includes(task[edge])), `out of ${tasks} at ${t}`);
      });
    }
  }
  assert.ok(waiting, "gradients wait");
});

test("selecting the only task that was found draws its ring", () => {
  const { scene, store } = smallScene(false);
  const finder = new FactFinder(store);
  store.find("relu");
  const before = finder.at(scene);
  store.select(0);
  assert.notEqual(damageBetween(before, finder.at(scene), 1), "none");
});

test("what a live session has only planned is not shown as done", () => {
  const { store, scene } = smallScene(false);
  Object.assign(store, { link: {} });
  store.update({ front: 1, t: 3 });
  const facts = new FactFinder(store).at(scene);
  const stateAt = (task: number) => stateOf(facts, scene.spots[scene.spotOf[task]]);
  assert.deepEqual([2, 1, 3, 0].map(stateAt), ["done", "planned", "planned", "running"]);
  const said = (task: number) => stateInWords(facts, scene.spots[scene.spotOf[task]]);
  assert.deepEqual([2, 1, 0].map(said), ["done", "planned", "running, as planned"]);
  const closed = smallScene(true).scene;
  const counts = new BoxCounts(closed, store.replay).at(0, 3, 1);
  assert.deepEqual([counts.done, counts.planned, counts.state], [0, 2, "running"]);
  assert.equal(cardText(new FactFinder(store).at(closed), 0), "0 done, 2 planned");
});

test("what the session has run of its plan, and what the pointer leaves and enters, is drawn anew", () => {
  const { store, scene } = smallScene(false);
  Object.assign(store, { link: {} });
  const finder = new FactFinder(store);
  store.update({ front: 1, t: 3 });
  const planned = finder.at(scene);
  store.update({ front: 2 });
  assert.ok(covers(damageBetween(planned, finder.at(scene), 1), MM));
  store.update({ hoveredTask: 0 });
  const hovered = finder.at(scene);
  store.update({ hoveredTask: null });
  const damage = damageBetween(hovered, finder.at(scene), 1);
  assert.ok(covers(damage, { x: 70, y: 100, width: 0, height: 20 })); // the wire from Mm to Relu
  assert.ok(!covers(damage, SUM));
});

test("the wire under the pointer is drawn in front of the others, until it belongs to an earlier layout", () => {
  const { store, scene } = smallScene(false);
  const finder = new FactFinder(store);
  const before = finder.at(scene);
  const [wire] = scene.wires;
  store.update({ hoveredWire: wire });
  const after = finder.at(scene);
  assert.equal(after.hoveredWire, wire);
  assert.deepEqual([after.hovered, before.hovered], [[wire.from, wire.to], []], "its ends are outlined, too");
  const damage = damageBetween(before, after, 1);
  for (const rect of [wire.bounds, SUM]) assert.ok(covers(damage, rect));
  const { scene: other } = smallScene(true);
  assert.equal(finder.at(other).hoveredWire, null);
});

function covers(damage: ReturnType<typeof damageBetween>, rect: Rect): boolean {
  return (
    typeof damage === "object" &&
    damage.x <= rect.x && damage.x + damage.width >= rect.x + rect.width &&
    damage.y <= rect.y && damage.y + damage.height >= rect.y + rect.height
  );
}
