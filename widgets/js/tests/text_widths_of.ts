/** Read texts (a JSON list) from stdin, and write their widths to stdout. */

import { readFileSync } from "node:fs";
import { textWidth } from "../src/layout/text_width.ts";

const texts: string[] = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(texts.map((text) => textWidth(text))));
