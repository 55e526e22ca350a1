/** Script of saved pages with figures: tabs, and the hover texts, legend and zoom of each figure. */

import { followAround } from "../page_theme.ts";
import { fitPaper } from "../views/print.ts";
import { unpacked } from "./data.ts";
import { Plot } from "./plot.ts";
import { workTabs } from "./tabs.ts";
import { Tip } from "./tooltip.ts";
import { Tree } from "./tree.ts";

workTabs(document);
const main = document.querySelector<HTMLElement>("main");
if (main) {
  main.querySelector("header")?.append(followAround(document.documentElement));
  fitPaper(main);
}
const packed = document.querySelector("#hover-data")?.textContent;
if (packed && window.DecompressionStream) {
  void unpacked(packed).then((data) => {
    const tip = new Tip(document.body);
    for (const root of document.querySelectorAll<HTMLElement>("[data-figure]")) {
      const figure = data.figures[root.dataset.figure!];
      if ("axes" in figure) new Plot(root, figure, data, tip);
      else new Tree(root, figure, data, tip);
    }
    document.documentElement.dataset.ready = "";
  });
}
