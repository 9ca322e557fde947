/**
 * Compiles src/ to dist/, turns shaders/ into modules under dist/shaders/ and bundles page/ to dist/page/ when a source is newer than the last build; returns within
 * milliseconds when none is. `node scripts/build.mjs [--force]`. Exits 1 when the compiler finds an error.
 */
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const stamp = join(root, "dist", ".built");

/** Paths of all files under `dir`, relative to it. */
function filesUnder(dir) {
  if (!existsSync(dir)) return [];
  const entries = readdirSync(dir, { recursive: true, withFileTypes: true });
  return entries.filter((it) => it.isFile()).map((it) => join(it.parentPath ?? it.path, it.name));
}

/** True when no source has changed since the last build. */
export function isBuilt() {
  if (!existsSync(stamp)) return false;
  const built = statSync(stamp).mtimeMs;
  const folders = ["src", "page", "shaders", "config", "examples"].map((name) => join(root, name));
  // Folders too: a file that is gone changes nothing else.
  const inputs = folders.flatMap((folder) =>
    readdirSync(folder, { recursive: true }).map((name) => join(folder, name)),
  );
  const configs = ["tsconfig.json", "tsconfig.build.json", "scripts/build.mjs"].map((name) => join(root, name));
  return [...folders, ...inputs, ...configs].every((path) => statSync(path).mtimeMs <= built);
}

/** Compiles when needed. Returns the exit code. */
export async function build({ force = false } = {}) {
  if (!force && isBuilt()) return 0;
  const compiler = join(root, "node_modules", "typescript", "bin", "tsc");
  if (!existsSync(compiler)) {
    process.stderr.write("grpu: dist/ is not built, as TypeScript is not installed. Run `npm run setup`.\n");
    // An install without development dependencies runs `prepare` too, and is no mistake.
    return process.env.npm_lifecycle_event === "prepare" ? 0 : 1;
  }
  const started = new Date();
  const { status } = spawnSync(process.execPath, [compiler, "-p", join(root, "tsconfig.build.json")], {
    // The compiler's findings are for people: standard output belongs to the program that is built.
    stdio: ["ignore", 2, 2],
  });
  if (status !== 0) return status ?? 1;
  removeOrphans();
  writeShaders();
  await bundlePage();
  mkdirSync(join(root, "dist"), { recursive: true });
  writeFileSync(stamp, `${started.toISOString()}\n`);
  return 0;
}

/** The scripts and the styles of the pages, each one file (that of runs has uPlot in it); http/bundled_page.ts reads them. */
async function bundlePage() {
  const { build: bundle } = await import("esbuild");
  const uplot = createRequire(import.meta.url)("uplot/package.json");
  const license = readFileSync(join(root, "node_modules", "uplot", "LICENSE"), "utf8").trim();
  await bundle({
    absWorkingDir: root,
    entryPoints: ["page", "page/traces", "page/evaluation"]
      .flatMap((folder) => [`${folder}/main.ts`, `${folder}/style.css`])
      .concat(["main.ts", "worker.ts", "style.css", "index.html"].map((name) => `page/train/${name}`)),
    outdir: "dist/page",
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    logLevel: "warning",
    banner: { js: `/*! uPlot ${uplot.version}\n${license}\n*/` },
    loader: { ".yaml": "text", ".jsonl": "text", ".html": "copy" },
    plugins: [COMPILED],
  });
}

/** Pages take the compiled sources, whose shaders are modules; the recipes import the package by its name. */
const COMPILED = {
  name: "compiled sources",
  setup({ onResolve }) {
    onResolve({ filter: /\/src\/.*\.ts$/ }, ({ path, resolveDir }) => {
      const file = relative(join(root, "src"), join(resolveDir, path));
      return { path: join(root, "dist", file.replace(/\.ts$/, ".js")), sideEffects: file.endsWith("environments.ts") };
    });
    // What they register is all that they are for, which package.json does not say of a checkout.
    onResolve({ filter: /\/examples\/.*\.ts$/ }, ({ path, resolveDir }) => ({
      path: join(resolveDir, path),
      sideEffects: true,
    }));
    onResolve({ filter: /^grpu$/ }, () => ({ path: join(root, "dist", "mod.js") }));
  },
};

/** A module of texts for each folder of shaders/, and one that finds them in place of src/engine/compute/shader_files.ts. */
function writeShaders() {
  const [from, to] = ["shaders", join("dist", "shaders")].map((name) => join(root, name));
  rmSync(to, { recursive: true, force: true });
  mkdirSync(to, { recursive: true });
  const owners = readdirSync(from);
  for (const owner of owners) {
    const texts = filesUnder(join(from, owner)).map((path) => [
      relative(from, path)
        .replaceAll("\\", "/")
        .replace(/\.wgsl$/, ""),
      withoutComments(readFileSync(path, "utf8")),
    ]);
    writeFileSync(join(to, `${owner}.js`), `export default ${JSON.stringify(Object.fromEntries(texts), null, 2)};\n`);
  }
  const entries = owners.map((owner) => `  ${owner}: () => import("../../shaders/${owner}.js"),\n`).join("");
  const read = 'export const readShader = async (name) => (await FOLDERS[name.split("/", 1)[0]]()).default[name];\n';
  const module = `/** Generated by scripts/build.mjs. */\nconst FOLDERS = {\n${entries}};\n${read}`;
  writeFileSync(join(root, "dist", "engine", "compute", "shader_files.js"), module);
}

/** Keeps line numbers, for the compiler's messages, `//#include`, and the marks `//--- name ---` of sections. */
function withoutComments(wgsl) {
  return wgsl.replace(/^[ \t]*\/\/(?![#-]).*$/gm, "").replace(/^[ \t]+/gm, "");
}

/** Takes out compiled files whose source is gone, so that a package holds none. */
function removeOrphans() {
  const dist = join(root, "dist");
  for (const path of filesUnder(dist)) {
    const source = path.replace(/\.d\.ts$|\.js$/, ".ts").replace(dist, join(root, "src"));
    if (source.endsWith(".ts") && !existsSync(source)) rmSync(path);
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  process.exitCode = await build({ force: process.argv.includes("--force") });
}
