/** What a page, or a notebook's output, runs as it is: shows each training loop in it that no script has shown yet. */

import { showLoop } from "./page.ts";

for (const root of document.querySelectorAll<HTMLElement>(".ts-loop:not([data-ready])")) showLoop(root);
