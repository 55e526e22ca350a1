/** Script of a training page or a notebook's output: shows each training run that no other script has shown yet. */

import { showLoop } from "./page.ts";

for (const root of document.querySelectorAll<HTMLElement>(".ts-loop:not([data-ready])")) showLoop(root);
