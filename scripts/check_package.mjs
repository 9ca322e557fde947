/**
 * Packs grpu as it would be published, installs that into an empty project and uses it there: the command, the
 * import, its types, a bundle for a page, and a step of training. `node scripts/check_package.mjs`
 */
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const dir = mkdtempSync(join(tmpdir(), "grpu-package-"));
const run = (command, args, cwd = dir) =>
  execFileSync(command, args, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"], shell: false });

try {
  checkContents(JSON.parse(run("npm", ["pack", "--json", "--silent", "--pack-destination", dir], root)));
  writeFileSync(join(dir, "package.json"), JSON.stringify({ name: "empty", type: "module", private: true }));
  run("npm", ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent", join(dir, archiveName())]);
  use();
  console.log("The packed grpu installs into an empty project and runs.");
} finally {
  rmSync(dir, { recursive: true, force: true });
}

function archiveName() {
  const { name, version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  return `${name}-${version}.tgz`;
}

/** What must be in the archive, and what must not. */
function checkContents(report) {
  const [{ files, size }] = Array.isArray(report) ? report : Object.values(report);
  const paths = files.map((file) => file.path);
  for (const wanted of [
    "dist/cli.js",
    "dist/mod.js",
    "dist/mod.d.ts",
    "dist/page/main.js",
    "dist/page/train/index.html",
    "dist/page/train/worker.js",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
  ]) {
    if (!paths.includes(wanted)) throw new Error(`Cannot publish the package as it lacks ${wanted}`);
  }
  for (const folder of ["dist/shaders/", "examples/"]) {
    if (!paths.some((path) => path.startsWith(folder))) throw new Error(`Cannot publish the package without ${folder}`);
  }
  const stray = paths.find(
    (path) => !/^(dist|config|examples)\/|^(README\.md|CHANGELOG\.md|LICENSE|package\.json)$/.test(path),
  );
  if (stray) throw new Error(`Cannot publish the package as it holds ${stray}`);
  console.log(`${paths.length} files, ${Math.round(size / 1024)} KiB packed`);
}

function use() {
  const bin = join(dir, "node_modules", ".bin", "grpu");
  if (!/train/.test(run(bin, ["--help"]))) throw new Error("`grpu --help` does not name the command train");
  const device = JSON.parse(run(bin, ["device", "--device", "cpu", "--json"]));
  if (typeof device !== "object" || device === null) throw new Error("`grpu device --json` gave no object");
  writeFileSync(join(dir, "use.mjs"), 'import * as grpu from "grpu";\nconsole.log(Object.keys(grpu).length);\n');
  if (!(Number(run(process.execPath, ["use.mjs"])) > 0)) throw new Error("the package exports nothing");
  checkTypes();
  checkPage();
  checkTraining(bin);
}

/** Two steps of warm-up and one of GRPO on the device that answers: the packed shaders and configurations are whole. */
function checkTraining(bin) {
  const config = join("node_modules", "grpu", "examples", "arithmetic", "run.yaml");
  const few = ["warmup.steps=2", "rllm.trainer.total_batches=1", "training.default_local_dir=out"];
  const outcome = JSON.parse(run(bin, ["train", config, ...few, "--json"]));
  if (typeof outcome !== "object" || outcome === null) throw new Error("`grpu train --json` gave no object");
  if (!existsSync(join(dir, "out", "report.html"))) throw new Error("`grpu train` wrote no report.html");
}

/** A page's bundle of all exports: nothing of Node may be left in it. test/consumer_test.ts has other bundlers, and a size. */
function checkPage() {
  const bundler = join(root, "node_modules", "esbuild", "bin", "esbuild");
  const options = ["--bundle", "--format=esm", "--platform=browser", "--log-level=error", "--outfile=page.js"];
  run(bundler, ["use.mjs", ...options]);
  if (/(from|import\()\s*["']node:/.test(readFileSync(join(dir, "page.js"), "utf8"))) {
    throw new Error("a page's bundle imports a module of Node");
  }
}

/** A TypeScript project's view of the package. */
function checkTypes() {
  writeFileSync(
    join(dir, "use.ts"),
    'import * as grpu from "grpu";\nexport const names: string[] = Object.keys(grpu);\n',
  );
  const options = {
    module: "nodenext",
    target: "es2023",
    strict: true,
    noEmit: true,
    skipLibCheck: false,
    types: [],
  };
  writeFileSync(join(dir, "tsconfig.json"), JSON.stringify({ compilerOptions: options, files: ["use.ts"] }));
  run(process.execPath, [join(root, "node_modules", "typescript", "bin", "tsc"), "-p", dir]);
}
