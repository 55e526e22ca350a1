/** Read a deck's document (gzipped JSON) from stdin, and write its layout with all boxes open to stdout. */

import { readFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { layOut } from "../src/layout/layout.ts";
import { makeTree } from "../src/layout/box_tree.ts";
import { DeckGraph } from "../src/model/graph.ts";

const tree = makeTree(new DeckGraph(JSON.parse(gunzipSync(readFileSync(0)).toString())));
const layout = layOut(tree, new Set(tree.boxes.keys()));
const boxes = layout.boxes.map(({ rect, title, subtitle }) => ({ rect, title, subtitle }));
console.log(JSON.stringify({ ...layout, boxes }));
