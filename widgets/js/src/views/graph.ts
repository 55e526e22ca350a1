/** The graph panel: the picture of the backward, and its camera. */

import { TALL } from "../../../../inspector/drawing/layout_constants.json";
import { el } from "../dom.ts";
import { areEqual } from "../equal_sets.ts";
import { firstView, LOW, MOST_RISE, READABLE } from "../layout/fit_to_size.ts";
import { layOut, LayoutCache } from "../layout/layout.ts";
import type { PlacedBox, Size } from "../layout/layout_types.ts";
import { makeTree, opened, type Tree } from "../layout/box_tree.ts";
import type { Changed, Store } from "../store.ts";
import { count } from "../format.ts";
import type { MakeView, Stage, View } from "../view_types.ts";
import { areaOf, type CameraView, centred, fitView, followView, kept, reveal, roomIn, sameView, scaledAbout } from "../graph/camera.ts";
import { Crumbs } from "../graph/breadcrumbs.ts";
import { around } from "../graph/dirty_area.ts";
import { edgeBytes } from "../graph/draw_wires.ts";
import { type Facts, FactFinder } from "../graph/frame_state.ts";
import { FocusRing } from "../graph/focus_ring.ts";
import { grown } from "../graph/spatial_index.ts";
import { Minimap } from "../graph/minimap.ts";
import { Mirror } from "../graph/accessible_list.ts";
import { Motion } from "../graph/layout_animation.ts";
import { Painter } from "../graph/painter.ts";
import { download, fileName, pngPicture, svgPicture, wholeOf } from "../graph/export_picture.ts";
import { Pilot } from "../graph/camera_controls.ts";
import { bindPointer, isForCamera } from "../graph/pointer.ts";
import { reachedFrom } from "../graph/upstream_downstream.ts";
import { Scene } from "../graph/scene.ts";
import { Strip } from "../graph/graph_toolbar.ts";
import { makeGroups } from "./groups.ts";
import { foldAll } from "./keyboard.ts";
import { makeStopped } from "./stop_banner.ts";
import styles from "./graph.css";

/** Margin around a group that is brought into view, pixels of the picture. */
const AROUND_GROUP = 60;
/** Longest time that one frame of a smooth movement makes up for, milliseconds. */
const LONGEST_FRAME = 100;

/** One tree per store, so that all of its views fold and unfold together. */
const trees = new WeakMap<Store, Tree>();

function treeOf(store: Store): Tree {
  let tree = trees.get(store);
  if (!tree) {
    trees.set(store, (tree = makeTree(store.graph)));
    store.update({ open: new Set() });
  }
  return tree;
}

export const makeGraph: MakeView = (stage, parent) => new GraphView(stage, parent);

class GraphView implements View {
  private readonly store: Store;
  private readonly tree: Tree;
  private readonly cache = new LayoutCache();
  private readonly section: HTMLElement;
  private readonly canvas = el("canvas", { tabindex: "0", role: "img" });
  private readonly painter: Painter;
  private readonly pilot: Pilot;
  private readonly map: Minimap;
  private readonly crumbs = new Crumbs((box) => this.toggle(box));
  private readonly mirror: Mirror;
  private readonly ring = new FocusRing();
  private readonly strip: Strip;
  private readonly stopped: View;
  private readonly groups: View;
  private readonly finder: FactFinder;
  private readonly bytes: Float64Array;
  private readonly ending = new AbortController();
  private readonly observer: ResizeObserver;
  private size: Size = { width: 0, height: 0 };
  /** Maximum height of the picture's columns. */
  private tall = TALL;
  /** Boxes opened by the panel itself. Until the user opens or closes a box, the choice follows the panel's size. */
  private fitted: ReadonlySet<number>;
  /** True once the panel has been visible; if it is hidden and shown again, it keeps its view. */
  private begun = false;
  private scene: Scene;
  private motion: Motion | null = null;
  /** Position of the camera after the layout transition. */
  private afterMotion: CameraView | null = null;
  private lastFrame = 0;

  constructor(
    private readonly stage: Stage,
    parent: HTMLElement,
  ) {
    const { store } = stage;
    this.store = store;
    this.tree = stage.tree = treeOf(store);
    this.fitted = store.state.open;
    this.scene = this.layOut();
    this.finder = new FactFinder(store);
    this.bytes = edgeBytes(store.graph);
    this.painter = new Painter(this.canvas, this.bytes);
    const takes = (event: WheelEvent | TouchEvent) => isForCamera(this.canvas, event);
    this.pilot = new Pilot(this.canvas, takes, () => this.freed(), this.ending.signal);
    this.map = new Minimap((x, y) => this.lookAt(x, y), () => !this.crumbs.isEmpty);
    this.mirror = new Mirror(store, {
      select: (task) => store.select(task),
      toggle: (box) => this.toggle(box),
      pin: ({ box }, layer) => store.pinLayer(box.id, layer),
      focus: (task, rect) => {
        store.update({ hoveredTask: task });
        this.move(reveal(this.aimedAt, this.size, rect));
      },
      blur: () => {
        store.update({ hoveredTask: null });
        stage.redraw(this);
      },
      leave: () => stage.root.focus({ preventScroll: true }),
    });
    this.strip = new Strip(store, {
      zoom: (factor) => this.zoom(factor),
      fold: (all) => foldAll(this.stage, all),
      save: (kind, what) => void this.save(kind, what),
    });
    const keys = /Mac/.test(navigator.platform) ? "⌘" : "Ctrl";
    const hint = el("div", { class: "hint", "aria-hidden": "true" }, `click the graph, or hold ${keys}, to zoom`);
    const { canvas, map, crumbs, ring, mirror } = this;
    const host = el("div", { class: "view" }, canvas, mirror.list, map.canvas, crumbs.element, hint, ring.element);
    const style = el("style", {}, styles);
    this.section = el("section", { class: "graph", "aria-label": "graph" }, style, host);
    parent.append(this.section);
    this.stopped = makeStopped(stage, this.section);
    this.groups = makeGroups(stage, this.section);
    this.section.append(this.strip.element);
    const toggle = (box: PlacedBox) => this.toggle(box);
    const facts = () => this.finder.at(this.scene);
    const { pilot, painter } = this;
    bindPointer({ stage, canvas, host, hint, pilot, painter, facts, toggle }, this.ending.signal);
    this.observer = new ResizeObserver(([entry]) => this.resize(entry.contentRect));
    this.observer.observe(host);
    this.watchPixels();
  }

  update(changed: Changed): boolean {
    this.stopped.update(changed);
    this.groups.update(changed);
    if (changed.has("t") && this.store.state.layers.size) this.store.update({ layers: new Map() });
    const { open, stopped } = this.store.state;
    if (changed.has("stopped") && stopped?.task != null) this.store.update({ open: opened(this.tree, open, stopped.task) });
    if (changed.has("open")) this.relayout();
    if (changed.has("camera") && this.store.state.camera === "fit" && this.size.width) this.openAsFirst();
    if (["camera", "t", "tab", "stopped"].some((name) => changed.has(name as never))) this.aim();
    else if (changed.has("selected")) this.aimAtSelected();
    if (changed.has("group")) this.aimAtGroup();
    this.strip.update(reachedFrom(this.store.state) === null ? null : this.facts.reach);
    return true;
  }

  draw(now: number): boolean {
    const elapsed = Math.min(LONGEST_FRAME, now - this.lastFrame);
    this.lastFrame = now;
    if (!this.size.width || !this.size.height) return false;
    const share = this.moveOn(now);
    const gliding = this.motion ? true : this.pilot.advance(elapsed);
    const { facts } = this;
    const { view } = this.pilot;
    const area = areaOf(view, this.size);
    this.painter.paint({ facts, colours: this.stage.colours, view, size: this.size, motion: this.motion, share });
    const settled = !gliding && !this.motion;
    if (settled) this.crumbs.update(this.scene, area);
    let again = this.map.draw(this.stage.colours, facts, view, this.size, settled, now);
    const pace = !settled ? "moving" : this.store.state.playing ? "playing" : "stopped";
    if (this.mirror.update(facts, area, pace, now)) again = true;
    this.ring.show(this.mirror.focused, this.scene, this.motion, share, view);
    return again || !settled;
  }

  dispose(): void {
    this.ending.abort();
    this.observer.disconnect();
    this.map.dispose();
    this.stage.tip(null);
    this.section.remove();
  }

  private get facts(): Facts {
    return this.finder.at(this.scene);
  }

  private layOut(): Scene {
    const { tree, cache, tall, store } = this;
    let layout = layOut(tree, store.state.open, cache, tall);
    // a single column may have the panel's height, columns beside each other may not
    if (tall > LOW && layout.rise > MOST_RISE / READABLE) layout = layOut(tree, store.state.open, cache, LOW);
    return new Scene(store.graph, tree, layout);
  }

  /** Compute the layout again; the clicked item keeps its position on the screen. */
  private relayout(): void {
    const before = this.scene;
    this.scene = this.layOut();
    this.describe();
    if (!this.size.width) return;
    this.pilot.allow(fitView(this.scene.layout, this.size).k);
    const from = this.pilot.view;
    const isFirst = this.store.state.open === this.fitted;
    const anchor = anchorOf(before, this.scene, this.store.shown);
    const to = anchor && !isFirst ? kept(this.aimedAt, anchor.from, anchor.to) : fitView(this.scene.layout, this.size);
    if (this.store.state.camera === "fit" && !isFirst) this.store.update({ camera: "free" });
    this.motion = this.afterMotion = null;
    if (this.stage.still || !this.begun) this.pilot.jump(to);
    else this.motion = new Motion(before, this.scene, performance.now(), { from, to });
  }

  /** Continue the layout transition. Return its progress. */
  private moveOn(now: number): number {
    const { motion } = this;
    if (!motion) return 1;
    const share = motion.share(now);
    this.pilot.jump(motion.view(share));
    if (share < 1) return share;
    this.motion = null;
    if (this.afterMotion) this.pilot.glide(this.afterMotion);
    this.afterMotion = null;
    return 1;
  }

  private resize({ width, height }: Size): void {
    // the reason of a stop is shown below the picture, which keeps its position
    const isLower = width === this.size.width;
    this.size = { width, height };
    if (!width || !height) return;
    const first = !this.begun;
    if (this.store.state.open === this.fitted) this.openAsFirst();
    this.begun = true;
    this.pilot.allow(fitView(this.scene.layout, this.size).k);
    this.aim(!isLower || first, first);
    if (first) this.describe();
    this.stage.redraw(this);
  }

  /** Open the boxes of the first view in a panel of this size. */
  private openAsFirst(): void {
    const { open, tall } = firstView(this.tree, roomIn(this.size));
    if (tall === this.tall && areEqual(open, this.store.state.open)) return;
    this.tall = tall;
    this.fitted = open;
    this.store.update({ open });
  }

  /** Move the camera to the position its mode requires. */
  private aim(jump = false, first = false): void {
    const { store } = this;
    const { camera, selected, stopped, t, front } = store.state;
    if (!this.size.width) return;
    const followed = (selected === null && t === front && stopped?.task) || store.shown; // a watchpoint's task has run
    const from = jump ? null : this.aimedAt; // after a change of size nothing needs to keep its position
    if (camera === "fit" || (first && camera === "free")) this.move(fitView(this.scene.layout, this.size), jump);
    else if (camera === "follow" && followed >= 0) {
      const view = followView(this.scene, this.size, from, followed);
      if (view) this.move(view, jump);
    }
  }

  /** Move as little as necessary for a task of which a part is visible; move a task selected elsewhere into the middle. */
  private aimAtSelected(): void {
    const { selected, camera } = this.store.state;
    const rect = selected === null ? null : this.scene.rectOf(selected);
    if (!rect || camera === "fit" || !this.size.width) return;
    const view = this.aimedAt;
    const { width, height } = this.size;
    const [left, top] = [rect.x * view.k + view.x, rect.y * view.k + view.y];
    const isVisible = left < width && top < height && left + rect.width * view.k > 0 && top + rect.height * view.k > 0;
    const to = isVisible ? reveal(view, this.size, rect) : centred(view, this.size, rect);
    if (!sameView(to, view)) this.move(to);
  }

  /** Bring all members of the selected group into view. */
  private aimAtGroup(): void {
    const { group } = this.store.state;
    if (group === null || !this.size.width) return;
    const members = this.store.outlines?.all[group].tasks ?? [];
    const rects = members.map((task) => this.scene.rectOf(task)).filter((rect) => rect !== null);
    if (!rects.length) return;
    const area = grown(around(rects), AROUND_GROUP);
    const view = fitView(area, this.size);
    this.store.update({ camera: "free" });
    this.move(centred({ ...view, k: Math.min(view.k, this.aimedAt.k) }, this.size, area));
  }

  /** Position of the camera after all movements. */
  private get aimedAt(): CameraView {
    return this.afterMotion ?? this.motion?.views.to ?? this.pilot.aim;
  }

  private move(view: CameraView, jump = false): void {
    if (this.motion) this.afterMotion = view;
    else if (jump || this.stage.still) this.pilot.jump(view);
    else this.pilot.glide(view);
    this.stage.redraw(this);
  }

  private freed(): void {
    this.motion = this.afterMotion = null;
    this.store.update({ camera: "free" });
    this.stage.redraw(this);
  }

  private zoom(factor: number): void {
    const { width, height } = this.size;
    const { k } = this.aimedAt;
    this.store.update({ camera: "free" });
    this.move(scaledAbout(this.aimedAt, this.pilot.allowed(k * factor), width / 2, height / 2));
  }

  private lookAt(x: number, y: number): void {
    this.store.update({ camera: "free" });
    this.move(centred(this.aimedAt, this.size, { x, y, width: 0, height: 0 }));
  }

  private toggle({ box, closed }: PlacedBox): void {
    const open = new Set(this.store.state.open);
    if (closed) open.add(box.id);
    else open.delete(box.id);
    this.store.update({ open });
  }

  private async save(kind: "svg" | "png", what: "seen" | "whole"): Promise<void> {
    const { store } = this;
    const { title } = store.document;
    const moment = store.running < 0 ? "end" : `task-${store.state.t + 1}`;
    try {
      const content = await this.picture(kind, what);
      download(content, fileName(title, store.replay.schedule.policy, moment, kind));
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      const said = `The ${kind.toUpperCase()} was not saved: ${reason}.`;
      const { trouble } = store.state;
      store.update({ trouble: "" }); // an earlier error may have been dismissed
      store.update({ trouble: trouble.includes(said) ? trouble : [trouble, said].filter(Boolean).join("\n") });
    }
  }

  private async picture(kind: "svg" | "png", what: "seen" | "whole"): Promise<Blob> {
    const { store, stage, facts, bytes } = this;
    const { title } = store.document;
    const shown = { area: areaOf(this.pilot.view, this.size), scale: this.pilot.view.k };
    const picture = { facts, bytes, colours: stage.colours, title, ...(what === "seen" ? shown : wholeOf(facts)) };
    if (kind === "png") return pngPicture(picture);
    return new Blob([svgPicture(picture, (spans) => this.painter.pen.measure(spans))], { type: "image/svg+xml" });
  }

  /** Describe the picture for screen readers. */
  private describe(): void {
    const { title } = this.store.document;
    const what = `graph of the backward of ${title}: ${count(this.store.graph.count, "task")}`;
    const how = "Tab moves to the list of visible tasks and modules, arrow keys move in it.";
    this.canvas.setAttribute("aria-label", `${what}. ${how}`);
  }

  /** Watch the resolution, which changes when the window moves to another screen or the page is zoomed. */
  private watchPixels(): void {
    const query = matchMedia(`(resolution: ${devicePixelRatio}dppx)`);
    const changed = () => {
      this.stage.redraw(this);
      this.watchPixels();
    };
    query.addEventListener("change", changed, { once: true, signal: this.ending.signal });
  }
}

/**
 * Return the item that keeps its position when the layout changes: the outermost box that opened or closed, or else the
 * shown task.
 */
function anchorOf(before: Scene, after: Scene, shown: number) {
  for (const { box, rect, closed } of after.layout.boxes) {
    const index = before.boxes.get(box.id);
    if (index === undefined) continue;
    const was = before.layout.boxes[index];
    if (was.closed !== closed) return { from: was.rect, to: rect };
  }
  const from = shown >= 0 ? before.rectOf(shown) : null;
  const to = shown >= 0 ? after.rectOf(shown) : null;
  return from && to && { from, to };
}
