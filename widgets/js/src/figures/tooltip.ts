/** Tooltip of the point under the pointer or selected by keys. Names are set as text, never parsed. */

import { el } from "../dom.ts";

export interface Line {
  text: string;
  colour?: string;
}

const ENTITIES: Record<string, string> = { "&lt;": "<", "&gt;": ">", "&amp;": "&", "&#36;": "$" };

/** Return the nodes of a text that may contain bold parts and the four HTML entities of escaped names. */
export function rich(text: string): Node[] {
  return text.split(/<\/?b>/).map((part, place) => {
    const plain = part.replace(/&(?:lt|gt|amp|#36);/g, (entity) => ENTITIES[entity]);
    return place % 2 ? el("b", {}, plain) : document.createTextNode(plain);
  });
}

export class Tip {
  private box = el("div", { class: "tip", role: "status", hidden: "hidden" });

  constructor(around: HTMLElement) {
    around.append(this.box);
    addEventListener("scroll", () => this.hide(), { capture: true, passive: true });
  }

  /** Show lines beside a position, within the window. */
  show(lines: Line[], x: number, y: number): void {
    this.box.replaceChildren(
      ...lines.map(({ text, colour }) => {
        const line = el("div", { class: colour ? "" : "plain" });
        if (colour) {
          const chip = el("s");
          chip.style.background = colour;
          line.append(chip);
        }
        line.append(...rich(text));
        return line;
      }),
    );
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const right = x + 14 + width < innerWidth - 4 ? x + 14 : x - 14 - width;
    this.box.style.left = `${Math.max(4, Math.min(right, innerWidth - 4 - width))}px`;
    this.box.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - 4 - height))}px`;
  }

  hide(): void {
    this.box.hidden = true;
  }
}
