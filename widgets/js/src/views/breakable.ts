/** Names that may wrap between their words. */

import { el } from "../dom.ts";

/** Longer ones wrap anywhere. */
const LONGEST = 300;
/** After a dot or an underscore, and before a capital: `Scaled·Dot·Product`, `torch.·nn.·functional`. */
const BETWEEN = /(?<=[a-z\d])(?=[A-Z])|(?<=[._])/;

/** The name in pieces that the page may put on lines of their own; its text is the same. */
export function breakable(name: string): (Node | string)[] {
  if (name.length > LONGEST) return [name];
  return name.split(BETWEEN).flatMap((piece, index) => (index ? [el("wbr"), piece] : [piece]));
}
