import assert from "node:assert/strict";
import { test } from "node:test";
import { FactFinder } from "../src/graph/frame_state.ts";
import type { Span } from "../src/graph/pen.ts";
import { fileName, svgPicture, wholeOf } from "../src/graph/export_picture.ts";
import { escaped, SvgPen } from "../src/graph/svg_pen.ts";
import { pathData } from "../src/graph/wire_path.ts";
import type { Colours } from "../src/view_types.ts";
import { CARD, smallScene } from "./small_scene.ts";

const measure = (spans: readonly Span[]) => spans.reduce((sum, { text, size }) => sum + text.length * size * 0.2, 0);

/** Colours that are their own names, so that a picture shows the names of the colours it used. */
const colours = new Proxy({}, { get: (_, name) => String(name) }) as Colours;

function pictureAt(t: number, closed: boolean, module?: string): string {
  const { store, scene } = smallScene(closed, module);
  store.go(t);
  const facts = new FactFinder(store).at(scene);
  const bytes = new Float64Array(3);
  return svgPicture({ facts, colours, bytes, title: "Tiny", ...wholeOf(facts) }, measure);
}

/** Return the text of each <text> without tags and entities. */
function textsOf(picture: string): string[] {
  const plain = (text: string) =>
    text.replace(/<[^>]*>/g, "").replace(/&(lt|gt|quot|#39|amp);/g, (_, name: string) =>
      ({ lt: "<", gt: ">", quot: '"', "#39": "'", amp: "&" })[name] as string,
    );
  return [...picture.matchAll(/<text[^>]*>(.*?)<\/text>/gs)].map(([, inner]) => plain(inner));
}

/** Check that tags are balanced and that nothing remains that only a malformed document contains. */
function assertWellFormed(picture: string): void {
  const open: string[] = [];
  const rest = picture.replace(/<(\/?)([a-z]+)((?:\s[\w:-]+="[^"<]*")*)\s*(\/?)>/g, (_, end, name, __, empty) => {
    if (end) assert.equal(open.pop(), name);
    else if (!empty) open.push(name);
    return "";
  });
  assert.deepEqual(open, []);
  assert.doesNotMatch(rest, /[<>]/);
  assert.doesNotMatch(rest.replace(/&(lt|gt|quot|amp|#39);/g, ""), /&/);
}

test("a module's name is text, whatever is in it", () => {
  const name = `<script>alert("x")</script>&'`;
  for (const closed of [false, true]) {
    const picture = pictureAt(1, closed, name);
    assertWellFormed(picture);
    assert.doesNotMatch(picture, /<script/);
    assert.ok(textsOf(picture).some((text) => text.startsWith(name)), textsOf(picture).join("|"));
  }
});

test("what XML forbids becomes a replacement character, and emoji stay", () => {
  assert.equal(escaped("a\u0000b\ud83dc\u{1f600}\uffff"), "a\ufffdb\ufffdc\u{1f600}\ufffd");
  assert.equal(escaped("line\tbreak\n"), "line\tbreak\n");
});

test("each state has its own fill and outline in the picture", () => {
  const picture = pictureAt(1, false);
  assert.match(picture, /fill="done"/); // Sum
  assert.match(picture, /fill="accent"\/>|fill="accent" /); // Mm runs
  assert.match(picture, /fill="panel" stroke="line2"/); // Relu waits
  assert.doesNotMatch(picture, /fill="accent-soft"/);
  assert.match(pictureAt(2, false), /fill="accent-soft" stroke="accent"/); // Relu is ready
});

test("the line in a closed box is as long as the share of its tasks that have run", () => {
  const whole = CARD.width - 29;
  const hasLine = (t: number, share: number) => pictureAt(t, true).includes(`width="${whole * share}" height="2"`);
  assert.ok(hasLine(1, 1) && !hasLine(1, 1 / 3));
  assert.ok(hasLine(2, 1 / 3));
  assert.ok(!hasLine(4, 1 / 3));
});

test("a closed box names the task in it that runs", () => {
  assert.ok(textsOf(pictureAt(1, true)).includes("encoderMm"));
  assert.ok(textsOf(pictureAt(0, true)).includes("encoderLinear"));
});

test("a half of a sector is an arc that is not the long way round", () => {
  const pen = new SvgPen(measure);
  pen.sector(10, 10, 4, 0.5, "ink");
  assert.match(pen.document({ x: 0, y: 0, width: 20, height: 20 }, 1, "panel", ""), /A4 4 0 0 1 10 14Z/);
});

test("corners are rounded, and steps to the side are curves", () => {
  assert.equal(pathData([0, 0, 0, 20]), "M0 0L0 20");
  assert.equal(pathData([0, 0, 0, 20, 30, 20]), "M0 0L0 14Q0 20 6 20L30 20");
  assert.equal(pathData([0, 0, 30, 20]), "M0 0C0 10 30 10 30 20");
  assert.equal(pathData([5, 5]), "");
});

test("a file's name has nothing that a file system minds", () => {
  assert.equal(fileName("a/b\\c:<d>", "heap", "task-58", "svg"), "a-b-c-d-heap-task-58.svg");
  assert.equal(fileName("../..", "", "end", "png"), "backward-end.png");
});
