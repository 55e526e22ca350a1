/** The script of a page or of a notebook's output: shows each frontier that no script has shown yet. */

import { showFrontier } from "./page.ts";

for (const root of document.querySelectorAll<HTMLElement>(".ts-frontier:not([data-ready])")) showFrontier(root);
