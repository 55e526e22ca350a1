// Bundles the deck into one ES module, widgets/static/deck.js: style sheet and d3 included, nothing loaded later; and
// the slider of plans for mirroring into a script that a page has inside, widgets/static/frontier.js.
// `--tests` bundles tests/*.test.ts into out/ for node's own test runner.
import { readFileSync, readdirSync } from "node:fs";
import * as esbuild from "esbuild";

/** A style sheet is imported as its minified text. */
const styles = {
  name: "styles",
  setup(build) {
    build.onLoad({ filter: /\.css$/ }, async ({ path }) => {
      const { code } = await esbuild.transform(readFileSync(path, "utf8"), { loader: "css", minify: true });
      return { contents: code, loader: "text" };
    });
  },
};

/** What joins data with elements, or makes them: d3-zoom listens, and keeps its state. 8 kB that stay out of the page. */
const UNUSED =
  "append|attr|classed|clone|data|dispatch|empty|enter|exit|html|insert|iterator|join|lower|merge|order|raise|remove|" +
  "selectAll|selectChild|selectChildren|size|sort|text";
const lean = {
  name: "lean d3-selection",
  setup(build) {
    const filter = new RegExp(`d3-selection[\\\\/]src[\\\\/]selection[\\\\/](${UNUSED})\\.js$`);
    build.onLoad({ filter }, () => ({ contents: "export default undefined" }));
  },
};

const shared = {
  absWorkingDir: import.meta.dirname,
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  plugins: [styles, lean],
  // d3-zoom animates with these; here the pilot does.
  alias: { "d3-transition": "./src/graph/no_transitions.ts", "d3-interpolate": "./src/graph/no_transitions.ts" },
  logLevel: "warning",
};

if (process.argv.includes("--tests")) {
  const tests = readdirSync(new URL("tests/", import.meta.url)).filter((name) => name.endsWith(".test.ts"));
  await esbuild.build({
    ...shared,
    entryPoints: tests.map((name) => `tests/${name}`),
    platform: "node",
    outdir: "out",
    outExtension: { ".js": ".mjs" },
  });
} else {
  const pages = [
    { entryPoints: ["src/index.ts"], outfile: "../static/deck.js" },
    { entryPoints: ["src/frontier/index.ts"], outfile: "../static/frontier.js", format: "iife" },
  ];
  for (const each of pages) {
    const page = { ...shared, minify: true, legalComments: "inline", ...each };
    if (process.argv.includes("--watch")) await (await esbuild.context(page)).watch();
    else await esbuild.build(page);
  }
}
