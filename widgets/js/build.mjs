// Bundles the deck into one ES module, widgets/static/deck.js: style sheet included, nothing loaded later; and
// the slider of recompute plans, the page of a training loop and the figures of a study into scripts that a page has
// inside, widgets/static/frontier.js, loop.js and figures.js.
// `--tests` bundles tests/*.test.ts into out/ for node's own test runner.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import * as esbuild from "esbuild";
import { minify } from "terser";

/** A style sheet is imported as its minified text. */
const styles = {
  name: "styles",
  setup(build) {
    build.onLoad({ filter: /\.css$/ }, async ({ path }) => {
      const { code } = await esbuild.transform(readFileSync(path, "utf8"), { loader: "css", minify: true });
      const contents = code.replace(/--[\w-]+:[^;}]*/g, (own) => own.replace(/([:,]) /g, "$1")); // which esbuild leaves alone
      return { contents, loader: "text" };
    });
  },
};

/**
 * What is private to a class, and called so in no other file, and members in camelCase: 2 % of the page, as a letter each.
 * A document's names are in snake_case, the browser's are in TypeScript's own declarations, and what is looked up by a
 * text is that text somewhere.
 */
function shortNames() {
  const sources = new URL("src/", import.meta.url);
  const files = readdirSync(sources, { recursive: true }).filter((path) => path.endsWith(".ts")).map((path) => {
    const text = readFileSync(new URL(path, sources), "utf8").replace(/\/\*[^]*?\*\/|\/\/.*/g, "");
    const own = [...text.matchAll(/\bprivate (?:readonly |async |get )*(\w+)/g)].map(([, name]) => name);
    const members = text.match(/(?<=^ +(?:readonly |async |get )*)[a-z]+[A-Z]\w*(?=[?!]?[:(])/gm);
    const elsewhere = text.match(/(?<=(?<!\bthis)\.)\w+/g); // of other objects than its own
    const texts = text.match(/(?<=["'`]|\bdataset\.)\w+/g);
    return { own: new Set(own), used: new Set(text.match(/\w+/g)), elsewhere: new Set(elsewhere), members, texts };
  });
  const names = new Set(files.flatMap(({ own }) => [...own]));
  for (const { own, used, elsewhere } of files) {
    for (const name of names) if (elsewhere.has(name) || (used.has(name) && !own.has(name))) names.delete(name);
  }
  const taken = new Set([...browsersNames(), ...files.flatMap(({ texts }) => texts ?? [])]);
  for (const name of files.flatMap(({ members }) => members ?? [])) if (!taken.has(name)) names.add(name);
  return new RegExp(`^(${[...names].sort().join("|")})$`);
}

function browsersNames() {
  const packages = new URL("node_modules/@typescript/", import.meta.url);
  const files = readdirSync(packages, { recursive: true }).filter((path) => /\blib\.[\w.]+\.d\.ts$/.test(path));
  if (!files.length) throw Error("node_modules has no declarations of the browser's names (lib.dom.d.ts): run npm ci");
  return files.flatMap((path) => readFileSync(new URL(path, packages), "utf8").match(/\w+/g));
}

/** What esbuild wrote, 2 % smaller. Safe here: no getter of ours does anything, and nobody alters Array, String and Math. */
async function smaller(outfile, module) {
  const path = new URL(outfile, import.meta.url);
  const compress = { passes: 3, hoist_funs: true, pure_getters: true, unsafe: true, unsafe_arrows: true };
  const { code } = await minify(readFileSync(path, "utf8"), { module, ecma: 2022, compress });
  writeFileSync(path, code);
}

const shared = {
  absWorkingDir: import.meta.dirname,
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  plugins: [styles],
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
    { entryPoints: ["src/loop/index.ts"], outfile: "../static/loop.js", format: "iife" },
    { entryPoints: ["src/figures/index.ts"], outfile: "../static/figures.js", format: "iife" },
  ];
  for (const each of pages) {
    const page = { ...shared, minify: true, mangleProps: shortNames(), legalComments: "inline", ...each };
    if (process.argv.includes("--watch")) await (await esbuild.context(page)).watch();
    else {
      await esbuild.build(page);
      await smaller(page.outfile, page.format === "esm");
    }
  }
}
