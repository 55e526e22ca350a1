/** What a page, or a notebook's output, runs as it is: shows each frontier in it that no script has shown yet. */

import { showFrontier } from "./page.ts";

for (const root of document.querySelectorAll<HTMLElement>(".ts-frontier:not([data-ready])")) showFrontier(root);
