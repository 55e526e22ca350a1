// Bundles the deck into one ES module, widgets/static/deck.js, which includes its style sheet and loads nothing later.
// The recompute frontier, the training page and the figures of a study become scripts that are embedded in pages:
// widgets/static/frontier.js, loop.js and figures.js.
// `--tests` bundles tests/*.test.ts into the single file out/tests.mjs, because node's test runner starts a process for
// each file.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import * as esbuild from "esbuild";
import { minify } from "terser";

const COLOURS = JSON.parse(readFileSync(new URL("../../inspector/drawing/colours.json", import.meta.url), "utf8"));

/**
 * Plugin that imports a style sheet as its minified text, with `--colours: dark` replaced by the colours of the theme.
 */
const styles = {
  name: "styles",
  setup(build) {
    build.onLoad({ filter: /\.css$/ }, async ({ path }) => {
      const source = readFileSync(path, "utf8").replace(/--colours: (\w+);/g, (_, theme) =>
        Object.entries({ ...COLOURS[theme], ...COLOURS[`deck ${theme}`] }).map(([name, colour]) => `--${name}: ${colour};`).join(""));
      const { code } = await esbuild.transform(source, { loader: "css", minify: true });
      const contents = code.replace(/--[\w-]+:[^;}]*/g, (own) => own.replace(/([:,]) /g, "$1")); // esbuild keeps these spaces
      return { contents, loader: "text" };
    });
  },
};

/** Members of one word that no document or message has. */
const INTERNAL = [
  "arrangement", "arrives", "boxes", "colours", "cuts", "extents", "facts", "hovered", "memories", "owner", "painter", "pilot", "rects",
  "replay", "ringed", "ruler", "scene", "spots", "stage", "store", "unreal", "wire", "wires",
];

/**
 * Return a pattern of the member names to shorten: private members whose names no other file uses, members in
 * camelCase, and `INTERNAL`. Shortening them saves 2 % of the bundle. It is safe because the fields of documents are in
 * snake_case, the browser's names are excluded by TypeScript's declarations, and names used as strings are excluded by
 * their texts.
 */
function shortNames() {
  const sources = new URL("src/", import.meta.url);
  const files = readdirSync(sources, { recursive: true }).filter((path) => path.endsWith(".ts")).map((path) => {
    const text = readFileSync(new URL(path, sources), "utf8").replace(/\/\*[^]*?\*\/|\/\/.*/g, "");
    const own = [...text.matchAll(/\bprivate (?:readonly |async |get )*(\w+)/g)].map(([, name]) => name);
    const members = text.match(/(?<=^ +(?:readonly |async |get )*)[a-z]+[A-Z]\w*(?=[?!]?[:(])/gm);
    const elsewhere = text.match(/(?<=(?<!\bthis)\.)\w+/g); // members of other objects
    const texts = text.match(/(?<=["'`]|\bdataset\.)\w+/g);
    return { own: new Set(own), used: new Set(text.match(/\w+/g)), elsewhere: new Set(elsewhere), members, texts };
  });
  const names = new Set(files.flatMap(({ own }) => [...own]));
  for (const { own, used, elsewhere } of files) {
    for (const name of names) if (elsewhere.has(name) || (used.has(name) && !own.has(name))) names.delete(name);
  }
  const taken = new Set([...browsersNames(), ...files.flatMap(({ texts }) => texts ?? [])]);
  for (const name of files.flatMap(({ members }) => members ?? [])) if (!taken.has(name)) names.add(name);
  return new RegExp(`^(${[...names, ...INTERNAL].sort().join("|")})$`);
}

function browsersNames() {
  const packages = new URL("node_modules/@typescript/", import.meta.url);
  const files = readdirSync(packages, { recursive: true }).filter((path) => /\blib\.[\w.]+\.d\.ts$/.test(path));
  if (!files.length) throw Error("node_modules has no declarations of the browser's names (lib.dom.d.ts): run npm ci");
  return files.flatMap((path) => readFileSync(new URL(path, packages), "utf8").replace(/\/\*[^]*?\*\//g, "").match(/\w+/g));
}

/**
 * Minify esbuild's output by another 2 %. The unsafe options are safe here: getters have no side effects, and no code
 * modifies Array, String or Math.
 */
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
    stdin: { contents: tests.map((name) => `import "./tests/${name}";`).join("\n"), resolveDir: import.meta.dirname },
    platform: "node",
    outfile: "out/tests.mjs",
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
