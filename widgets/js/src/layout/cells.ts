/** What a box holds, with its size: a task with its parameters, a row of chips, a closed or an open box. */

import { grouped } from "../text.ts";
import type { Arrangement, Extent } from "./arrangement.ts";
import type { Layout, PlacedWire, Rect } from "./placed.ts";
import { ROW_LINE } from "./settling.ts";
import { shorten, textWidth } from "./text_width.ts";
import type { Box } from "./tree.ts";

const TASK_HEIGHT = 20;
const PILL_HEIGHT = 16;
const PILL_LINE = 19;
const CHIP = 12;
const CHIP_PITCH = 17;
const DOT = 8;
/** Between a task and its pills. */
const BESIDE = 8;
/** Around what is in an open box. */
const PAD = 10;
/** The height of an open box's title. */
const HEADER = 26;
const CARD_HEIGHT = 42;
/** How far the cards behind a closed box stand out. */
const CARDS_BEHIND = 6;
const WIDEST_LABEL = 190;
const WIDEST_CAPTION = 110;
const WIDEST_CARD_LABEL = 260;
const NEARLY_STRAIGHT = 60;

/** What has been placed so far. Wires between cells come in pieces, the outermost first. */
export interface Canvas extends Omit<Layout, "width" | "height"> {
  exits: Map<number, number[][]>;
  links: Map<number, number[]>;
  entries: Map<number, number[][]>;
  /** Open boxes whose content is not placed yet. */
  pending: Pending[];
}

/** A box's content, to be placed with its corner at (x, y). Wires come in at `top` and leave at `bottom`. */
export interface Pending {
  inside: Inside;
  x: number;
  y: number;
  top: number;
  bottom: number;
}

/** The cells of a box where they have been put, and the numbers of its wires in the order of the arrangement's. */
export interface Inside {
  cells: Cell[];
  arrangement: Arrangement;
  links: number[];
  entries: number[];
  exits: number[];
}

export interface Cell {
  extent: Extent;
  /** How far from its axis a wire arrives, which leads to `end` in it. */
  arrives(wire: number, end: number): number;
  leaves(wire: number, end: number): number;
  /** Puts it with its axis at x and its top at y. */
  place(x: number, y: number, canvas: Canvas): void;
}

/** A pill or stub to be placed beside its user. `edges` are those that its wire stands for. */
export interface Side {
  kind: "pill" | "parameter" | "to" | "from";
  tasks: number[];
  label: string;
  edges: number[];
  /** What is at the other end of its wire: a task, or a closed box as `~box.id`. */
  end: number;
}

function sideWidth(side: Side): number {
  return Math.ceil(textWidth(side.label)) + (side.kind === "pill" ? 20 : 24) + 8;
}

/** A task, with pills and stubs at its left and right. */
export class TaskCell implements Cell {
  readonly extent: Extent;
  private readonly label: string;
  private readonly caption: string;
  private readonly width: number;

  constructor(
    private readonly task: number,
    title: string,
    caption: string,
    private readonly left: readonly Side[],
    private readonly right: readonly Side[],
  ) {
    this.label = shorten(title, WIDEST_LABEL);
    this.caption = shorten(caption, WIDEST_CAPTION);
    const captioned = this.caption ? textWidth(this.caption) + 7 : 0;
    this.width = Math.max(44, 2 * Math.ceil((textWidth(this.label) + captioned + 28) / 2));
    const half = this.width / 2;
    const height = Math.max(TASK_HEIGHT, heightBeside(left, right));
    this.extent = { left: half + room(left), right: half + room(right), height, foot: TASK_HEIGHT };
  }

  arrives(): number {
    return 0;
  }

  leaves(): number {
    return 0;
  }

  place(x: number, y: number, canvas: Canvas): void {
    const { task, label, caption, width } = this;
    const rect = { x: x - width / 2, y, width, height: TASK_HEIGHT };
    canvas.tasks.push({ task, rect, label, caption, chip: false });
    placeSides(task, this.left, rect, -1, canvas);
    placeSides(task, this.right, rect, 1, canvas);
  }
}

function heightBeside(left: readonly Side[], right: readonly Side[]): number {
  return PILL_LINE * (Math.max(left.length, right.length, 1) - 1) + TASK_HEIGHT;
}

function room(sides: readonly Side[]): number {
  return sides.reduce((most, side) => Math.max(most, sideWidth(side) + BESIDE), 0);
}

/** Stacks pills and stubs beside a task or card; those below the first hang on a rail. */
function placeSides(end: number, sides: readonly Side[], beside: Rect, sign: -1 | 1, canvas: Canvas): void {
  const edge = sign > 0 ? beside.x + beside.width : beside.x;
  const middle = beside.y + TASK_HEIGHT / 2;
  const near = edge + sign * BESIDE;
  const rail = edge + (sign * BESIDE) / 2;
  sides.forEach((side, line) => {
    const center = middle + line * PILL_LINE;
    const width = sideWidth(side);
    const x = sign > 0 ? near : near - width;
    placeSide(end, side, { x, y: center - PILL_HEIGHT / 2, width, height: PILL_HEIGHT }, canvas, false);
    const points = line ? [edge, middle, rail, middle, rail, center, near, center] : [edge, middle, near, middle];
    canvas.wires.push(wireTo(side, side.edges, end, points));
  });
}

function placeSide(end: number, { kind, tasks, label }: Side, rect: Rect, canvas: Canvas, dot: boolean): void {
  if (kind === "pill") canvas.pills.push({ tasks, user: end, rect, label, dot });
  else canvas.stubs.push({ kind, task: end, others: tasks, rect, label, dot });
}

/** The wire between a task or card and a pill or stub beside it: `points` lead to that. */
function wireTo(side: Side, edges: number[], end: number, points: number[]): PlacedWire {
  if (side.kind !== "from") {
    const kind = side.kind === "to" ? "gradient" : "parameter";
    return { kind, edges, from: end, to: side.end, points };
  }
  const reversed: number[] = [];
  for (let at = points.length - 2; at >= 0; at -= 2) reversed.push(points[at], points[at + 1]);
  return { kind: "gradient", edges, from: side.end, to: end, points: reversed };
}

/** A pill or stub that several chips share: by chip's task the edges. */
export interface Shared {
  side: Side;
  users: Map<number, number[]>;
}

/**
 * Many like tasks as a row of chips, a grid where there are very many. Parameters of single chips are dots beside them;
 * those that chips share are pills at the right, each with a wire below the row that collects from its users.
 */
export class RowCell implements Cell {
  readonly extent: Extent;
  private readonly label: string;
  private readonly labelWidth: number;
  private readonly isGrid: boolean;
  private readonly pitch: number;
  /** Chips in a line. */
  private readonly line: number;
  private readonly linePitch: number;
  private readonly chipsHeight: number;
  private readonly chipsWidth: number;
  private readonly number: Map<number, number>;

  constructor(
    private readonly tasks: readonly number[],
    title: string,
    private readonly own: ReadonlyMap<number, Side[]>,
    private readonly shared: readonly Shared[],
  ) {
    const count = tasks.length;
    this.label = `${shorten(title, WIDEST_LABEL)} ×${count}`;
    const progress = textWidth(`${grouped(count)} of ${grouped(count)} done`);
    this.labelWidth = Math.ceil(Math.max(textWidth(this.label, 11, true), progress)) + 4;
    this.isGrid = count > ROW_LINE;
    let most = 0;
    for (const sides of own.values()) most = Math.max(most, sides.length);
    const dotColumns = most <= 2 ? Math.min(most, 1) : Math.ceil(most / 2);
    this.pitch = CHIP_PITCH + (DOT + 3) * dotColumns;
    this.line = this.isGrid ? Math.max(1, Math.floor(ROW_LINE / (1 + dotColumns))) : count;
    this.linePitch = CHIP + 6 + (most > 1 ? 6 : 0);
    this.chipsHeight = CHIP + (Math.ceil(count / this.line) - 1) * this.linePitch + (most > 1 ? 6 : 0);
    this.chipsWidth = this.line * this.pitch - (CHIP_PITCH - CHIP);
    const pills = shared.reduce((widest, { side }) => Math.max(widest, sideWidth(side) + 16), 0);
    const half = this.chipsWidth / 2;
    this.extent = {
      left: half + this.labelWidth + 10,
      right: half + pills,
      height: this.chipsHeight + 22 * shared.length,
      foot: this.isGrid ? this.chipsHeight : CHIP,
    };
    this.number = new Map(tasks.map((task, number) => [task, number]));
  }

  arrives(_wire: number, end: number): number {
    return this.port(end);
  }

  leaves(_wire: number, end: number): number {
    return this.port(end);
  }

  private port(task: number): number {
    if (this.isGrid) return 0;
    return (this.number.get(task) as number) * this.pitch + CHIP / 2 - this.chipsWidth / 2;
  }

  place(x: number, y: number, canvas: Canvas): void {
    const edge = x - this.chipsWidth / 2;
    const { labelWidth, label } = this;
    const beside = { x: edge - labelWidth - 10, y, width: labelWidth, height: CHIP };
    canvas.rows.push({ tasks: [...this.tasks], rect: beside, label });
    this.tasks.forEach((task, number) => {
      const left = edge + (number % this.line) * this.pitch;
      const top = y + Math.floor(number / this.line) * this.linePitch;
      const rect = { x: left, y: top, width: CHIP, height: CHIP };
      canvas.tasks.push({ task, rect, label: "", caption: "", chip: true });
      this.own.get(task)?.forEach((side, position) => placeDot(task, side, position, rect, canvas));
    });
    this.shared.forEach((shared, line) => this.placeShared(shared, line, edge, y, canvas));
  }

  private placeShared({ side, users }: Shared, line: number, edge: number, y: number, canvas: Canvas): void {
    const foot = y + this.chipsHeight;
    const rail = foot + 13 + 22 * line;
    const pill = edge + this.chipsWidth + 16;
    const [first] = users.keys();
    const rect = { x: pill, y: rail - PILL_HEIGHT / 2, width: sideWidth(side), height: PILL_HEIGHT };
    placeSide(first, side, rect, canvas, false);
    if (this.isGrid) {
      // the grid as a whole has one wire
      const start = edge + CHIP / 2 + 3;
      canvas.wires.push(wireTo(side, [...users.values()].flat(), first, [start, foot, start, rail, pill, rail]));
      return;
    }
    for (const [task, edges] of users) {
      const start = edge + (this.number.get(task) as number) * this.pitch + CHIP / 2 + 3;
      canvas.wires.push(wireTo(side, edges, task, [start, y + CHIP, start, rail, pill, rail]));
    }
  }
}

/** A parameter of one chip. From the third on there is no room for the wire. */
function placeDot(task: number, side: Side, position: number, chip: Rect, canvas: Canvas): void {
  const x = chip.x + CHIP + 3 + (position >> 1) * (DOT + 3);
  const rect = { x, y: chip.y + 2 + (position % 2) * (DOT + 1), width: DOT, height: DOT };
  placeSide(task, side, rect, canvas, true);
  const points = position < 2 ? toDot(chip.x + CHIP, chip.y + CHIP / 2, rect) : [];
  canvas.wires.push({ kind: "parameter", edges: side.edges, from: task, to: side.end, points });
}

function toDot(x: number, y: number, dot: Rect): number[] {
  const center = dot.y + DOT / 2;
  return center === y ? [x, y, dot.x, y] : [x, y, x + 1.5, y, x + 1.5, center, dot.x, center];
}

/** A closed box: name, class and the number of tasks, before two more cards. */
export class CardCell implements Cell {
  readonly extent: Extent;
  private readonly label: FittedLabel;
  private readonly width: number;

  constructor(
    private readonly box: Box,
    private readonly left: readonly Side[],
    private readonly right: readonly Side[],
  ) {
    this.label = fittedLabel(box, WIDEST_CARD_LABEL);
    this.width = Math.max(140, 2 * Math.ceil((this.label.width + 56) / 2));
    const half = this.width / 2;
    this.extent = {
      left: half + room(left),
      right: half + Math.max(CARDS_BEHIND, room(right)),
      height: Math.max(CARD_HEIGHT + CARDS_BEHIND, heightBeside(left, right)),
      foot: CARD_HEIGHT,
    };
  }

  arrives(): number {
    return 0;
  }

  leaves(): number {
    return 0;
  }

  place(x: number, y: number, canvas: Canvas): void {
    const { box, width } = this;
    const rect = { x: x - width / 2, y, width, height: CARD_HEIGHT };
    const { title, subtitle } = this.label;
    canvas.boxes.push({ box, rect, title, subtitle, depth: box.depth, closed: true });
    placeSides(~box.id, this.left, rect, -1, canvas);
    placeSides(~box.id, this.right, rect, 1, canvas);
  }
}

interface FittedLabel {
  title: string;
  subtitle: string;
  width: number;
}

/** Of title and subtitle the title is shortened last; numbers of calls are never cut. */
function fittedLabel(box: Box, width: number): FittedLabel {
  let title = shorten(box.title, width, 11, true);
  const left = width - textWidth(title, 11, true) - 6;
  let subtitle = left > 24 ? shorten(box.subtitle, left) : "";
  if (/[×\d]/.test(box.subtitle) && !box.path && subtitle !== box.subtitle) {
    subtitle = shorten(box.subtitle, width - 66);
    title = shorten(box.title, Math.max(60, width - textWidth(subtitle) - 6), 11, true);
  }
  return { title, subtitle, width: textWidth(title, 11, true) + (subtitle ? 6 + textWidth(subtitle) : 0) };
}

/** An open box around what has been laid out in it. */
export class BoxCell implements Cell {
  readonly extent: Extent;
  private readonly label: FittedLabel;
  private readonly width: number;
  private readonly height: number;
  private readonly margin: number;
  private readonly axis: number;
  /** By wire the x at which it crosses the box's edge. */
  private readonly entryX = new Map<number, number>();
  private readonly exitX = new Map<number, number>();

  /** `weights` are of the wires, by number. */
  constructor(
    private readonly box: Box,
    private readonly inside: Inside,
    weights: readonly number[],
  ) {
    const { arrangement } = inside;
    this.label = fittedLabel(box, Math.max(320, arrangement.width));
    this.width = Math.ceil(Math.max(arrangement.width + 2 * PAD, this.label.width + 2 * PAD + 4));
    this.height = HEADER + arrangement.height + PAD;
    this.margin = (this.width - arrangement.width) / 2;
    inside.entries.forEach((wire, place) => this.entryX.set(wire, arrangement.entries[place][0] + this.margin));
    inside.exits.forEach((wire, place) => {
      const points = arrangement.exits[place];
      this.exitX.set(wire, points[points.length - 2] + this.margin);
    });
    this.axis = this.axisFor(weights);
    this.extent = { left: this.axis, right: this.width - this.axis, height: this.height, foot: this.height };
  }

  /** Where the heaviest wire comes in or leaves, or else the middle: where wires of both sides are straightest. */
  private axisFor(weights: readonly number[]): number {
    const middle = this.width / 2;
    const entry = mainPort(this.entryX, weights, middle);
    const exit = mainPort(this.exitX, weights, entry);
    if (Math.abs(entry - exit) <= NEARLY_STRAIGHT || Math.abs(entry - middle) < this.width / 4) return entry;
    return Math.abs(exit - middle) < this.width / 4 ? exit : middle;
  }

  arrives(wire: number): number {
    return (this.entryX.get(wire) as number) - this.axis;
  }

  leaves(wire: number): number {
    return (this.exitX.get(wire) as number) - this.axis;
  }

  place(x: number, y: number, canvas: Canvas): void {
    const { box, width, height, inside } = this;
    const left = x - this.axis;
    const { title, subtitle } = this.label;
    canvas.boxes.push({ box, rect: { x: left, y, width, height }, title, subtitle, depth: box.depth, closed: false });
    canvas.pending.push({ inside, x: left + this.margin, y: y + HEADER, top: y, bottom: y + height });
  }
}

/** The x of the heaviest wire's port, of equally heavy ones of that in the middle. */
function mainPort(ports: ReadonlyMap<number, number>, weights: readonly number[], otherwise: number): number {
  let heaviest = -1;
  let equal: number[] = [];
  for (const [wire, x] of ports) {
    if (weights[wire] > heaviest) {
      heaviest = weights[wire];
      equal = [];
    }
    if (weights[wire] === heaviest) equal.push(x);
  }
  equal.sort((a, b) => a - b);
  return equal.length ? equal[equal.length >> 1] : otherwise;
}

/** Puts the cells and the wires of a box where they are in the picture. */
export function placeInside({ inside, x, y, top, bottom }: Pending, canvas: Canvas): void {
  const { arrangement } = inside;
  inside.cells.forEach((cell, place) => cell.place(x + arrangement.xs[place], y + arrangement.ys[place], canvas));
  inside.links.forEach((wire, place) => canvas.links.set(wire, moved(arrangement.links[place], x, y)));
  inside.entries.forEach((wire, place) => {
    const points = moved(arrangement.entries[place], x, y);
    addPiece(canvas.entries, wire, [points[0], top, ...points]);
  });
  inside.exits.forEach((wire, place) => {
    const points = moved(arrangement.exits[place], x, y);
    addPiece(canvas.exits, wire, [...points, points[points.length - 2], bottom]);
  });
}

function moved(points: readonly number[], x: number, y: number): number[] {
  return points.map((at, index) => at + (index % 2 ? y : x));
}

function addPiece(pieces: Map<number, number[][]>, wire: number, points: number[]): void {
  const found = pieces.get(wire);
  if (found) found.push(points);
  else pieces.set(wire, [points]);
}
