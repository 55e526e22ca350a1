// Bundles the page into one ES module, widgets/static/deck.js: style sheet, uPlot and d3 included, nothing loaded later.
// `--tests` bundles tests/*.test.ts into out/ for node's own test runner.
import { readdirSync } from "node:fs";
import * as esbuild from "esbuild";

const shared = {
  absWorkingDir: import.meta.dirname,
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  loader: { ".css": "text" },
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
  const page = {
    ...shared,
    entryPoints: ["src/index.ts"],
    minify: true,
    legalComments: "inline",
    outfile: "../static/deck.js",
  };
  if (process.argv.includes("--watch")) await (await esbuild.context(page)).watch();
  else await esbuild.build(page);
}
