/**
 * Input and output of the layout of one box: the extents of its items and the wires between them; their positions and
 * points.
 */

/** Space of an item on both sides of its axis and below its top. Wires leave it at `foot`. */
export interface Extent {
  left: number;
  right: number;
  height: number;
  foot: number;
}

/**
 * A wire from one item to another, with its distance from their axes at both ends. Of the wires that leave an item, the
 * one with the greatest `weight` is straight if possible; those with a lower `output` are further left unless that
 * causes crossings.
 */
export interface Link {
  source: number;
  target: number;
  leaves: number;
  arrives: number;
  weight: number;
  output: number;
}

/** A wire that crosses the edge of the box: it enters (or leaves) `item` at this distance from its axis. */
export interface Port {
  item: number;
  shift: number;
  weight: number;
  output: number;
}

/**
 * Content of one box: `ranks` are the ranks of the items, and every link leads to a higher rank. Columns are at most
 * `tall` if possible.
 */
export interface Contained {
  extents: Extent[];
  ranks: number[];
  links: Link[];
  entries: Port[];
  exits: Port[];
  tall: number;
}

/**
 * Axes and tops of the items, and the points (x, y, x, y, ...) of each wire in the order of the input, relative to the
 * corner of the box's content. Entries start at the content's top, exits end at its bottom.
 */
export interface Arrangement {
  width: number;
  height: number;
  xs: number[];
  ys: number[];
  links: number[][];
  entries: number[][];
  exits: number[][];
}
