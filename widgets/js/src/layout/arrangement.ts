/** What the layout of one box takes and gives: extents of its items, wires between them; positions and points. */

/** The room an item takes on both sides of its axis and below its top. Wires leave it at `foot`. */
export interface Extent {
  left: number;
  right: number;
  height: number;
  foot: number;
}

/**
 * A wire from one item to another, with its distance from their axes where it leaves and where it arrives. Of the wires
 * that leave an item, that of the greatest `weight` is straight where it can be, and that of a lower `output` is left
 * of the others where nothing speaks against it.
 */
export interface Link {
  source: number;
  target: number;
  leaves: number;
  arrives: number;
  weight: number;
  output: number;
}

/** Where a wire crosses the edge of the box: it comes to (or from) `item`, so far from its axis. */
export interface Port {
  item: number;
  shift: number;
  weight: number;
  output: number;
}

/** What one box holds: `ranks` are of the items, every link goes to a higher rank. Columns are cut to be no taller than `tall`. */
export interface Contained {
  extents: Extent[];
  ranks: number[];
  links: Link[];
  entries: Port[];
  exits: Port[];
  tall: number;
}

/**
 * Where the items' axes and tops are, and the points (x, y, x, y, ...) of each wire, in the order in which the wires
 * were given, from the corner of the box's content. Entries start at the content's top, exits end at its bottom.
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
