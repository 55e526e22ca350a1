import assert from "node:assert/strict";
import { test } from "node:test";
import { FactFinder } from "../src/graph/frame_state.ts";
import { svgPicture, wholeOf } from "../src/graph/export_picture.ts";
import type { Direction, Groups } from "../src/model/document.ts";
import { HUES, Outlines } from "../src/model/outlines.ts";
import { Store } from "../src/store.ts";
import type { Colours } from "../src/view_types.ts";
import { smallDocument } from "./small_document.ts";
import { smallScene } from "./small_scene.ts";

function group(direction: Direction, ...tasks: number[]): Groups["found"][number] {
  return { direction, title: "t", product: "p", where: "w", launches: [2, 1], copied: 0, tasks };
}

function groupsOf(...found: Groups["found"]): Groups {
  const refused = [{ direction: "backward" as const, title: "2 × mm", why: "unequal", tasks: [2] }];
  return { found, refused, said: { backward: "b", forward: "f" } };
}

test("groups are named anew for each direction, and beyond Z by two letters", () => {
  const many = Array.from({ length: 28 }, () => group("backward", 0));
  const { all } = new Outlines(groupsOf(...many, group("forward", 1)));
  assert.deepEqual([0, 25, 26, 27, 28].map((at) => all[at].name), ["A", "Z", "AA", "AB", "A"]);
  assert.equal(all[HUES].hue, 0);
  assert.deepEqual([all[29].name, all[29].where], ["", "unequal"]);
});

test("a task points out its group of the shown direction, and the list comes before it", () => {
  const document = { ...smallDocument(), groups: groupsOf(group("backward", 0, 1), group("forward", 1)) };
  const store = new Store(document, null);
  const lit = () => store.litGroup;
  assert.equal(lit(), null);
  store.update({ hoveredTask: 1 });
  assert.equal(lit(), null, "nothing is outlined");
  store.showGroups();
  assert.equal(store.state.groups, "backward");
  assert.equal(lit()?.index, 0);
  store.showGroups("forward");
  assert.equal(lit()?.index, 1);
  store.update({ hoveredGroup: 2 });
  assert.equal(lit()?.where, "unequal");
  store.showGroups();
  assert.equal(store.state.groups, "off");
});

test("a saved page without groups has nothing to show, a live one asks for them", () => {
  assert.equal(new Store(smallDocument(), null).canGroup, false);
  const asked: unknown[] = [];
  const link = { busy: false, ask: (command: unknown) => asked.push(command) } as never;
  const store = new Store(smallDocument(), link);
  store.showGroups();
  assert.deepEqual(asked, [{ kind: "groups" }]);
  store.progress({
    position: 4, status: "finished", trouble: "", stopped: null, history: null, forgotten: [], records: {}, checks: {},
    live: null, others: null, branches: null, metas: [], groups: groupsOf(group("backward", 1)),
  });
  assert.equal(store.outlines?.around(1).length, 1);
});

/** Colours that are their own names. */
const colours = new Proxy({}, { get: (_, name) => String(name) }) as Colours;

function pictureOf(closed: boolean, shown: Direction | "off", lit: number | null = null): string {
  const { store, scene } = smallScene(closed);
  store.outlines = new Outlines(groupsOf(group("backward", 1), group("backward", 3), group("forward", 1)));
  store.update({ groups: shown, hoveredGroup: lit });
  const facts = new FactFinder(store).at(scene);
  const measure = () => 8;
  return svgPicture({ facts, colours, bytes: new Float64Array(3), title: "T", ...wholeOf(facts) }, measure);
}

test("members are outlined in their group's colour with its name; forward groups are dashed", () => {
  assert.doesNotMatch(pictureOf(false, "off"), /stroke="g\d"/);
  const backward = pictureOf(false, "backward");
  assert.equal(backward.match(/stroke="hue0"/g)?.length, 1);
  assert.match(backward, />A<.*>B</s);
  assert.doesNotMatch(backward, /stroke="hue0"[^>]*dasharray/);
  const forward = pictureOf(false, "forward");
  assert.match(forward, /stroke="hue0"[^>]*dasharray/);
});

test("the one that is pointed at stands out, and so does what was refused", () => {
  const lit = pictureOf(false, "backward", 1);
  assert.match(lit, /stroke="hue1" stroke-width="3"\/>/);
  assert.match(lit, /stroke="hue0"[^>]*opacity/);
  assert.doesNotMatch(pictureOf(false, "backward"), /stroke="ink3" stroke-width="3"/);
  assert.match(pictureOf(false, "backward", 3), /stroke="ink3" stroke-width="3" stroke-dasharray/);
});

test("a closed box names the groups in it", () => {
  assert.match(pictureOf(true, "backward"), />A<\/tspan>/);
  assert.match(pictureOf(true, "backward"), />B<\/tspan>/);
  assert.doesNotMatch(pictureOf(true, "backward"), /stroke="g\d"/);
  assert.match(pictureOf(true, "backward", 0), /stroke="hue0"/);
});
