/**
 * Writes config/verl/ from published packages of verl, for every version in `VERL_ENGINES` (src/train/config/fields/verl_tree.ts).
 * `node scripts/verl_trees.mjs`; it needs Python 3 with pip, and installs Hydra under .cache/verl.
 * A new version: add it to `VERL_ENGINES`, run this, then `npx vitest run test/train/config/yaml_test.ts`.
 */
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "./build.mjs";

const at = (path) => fileURLToPath(new URL(`../${path}`, import.meta.url));
const HYDRA = ["hydra-core==1.3.8", "omegaconf==2.3.1"];
const cache = at(".cache/verl");
const python = `${cache}/python/bin/python`;
const run = (command, args) =>
  execFileSync(command, args, { encoding: "utf8", maxBuffer: 2 ** 26, stdio: ["ignore", "pipe", "inherit"] });

if ((await build()) !== 0) process.exit(1);
const { VERL_ENGINES, VERL_SECTIONS, splitEngines, verlFields, verlFiles, verlHead } = await import(
  "../dist/train/config/fields/verl_tree.js"
);
const { renderFields } = await import("../dist/train/config/fields/render.js");

mkdirSync(cache, { recursive: true });
if (!existsSync(python)) run("python3", ["-m", "venv", `${cache}/python`]);
run(python, ["-m", "pip", "install", "--quiet", ...HYDRA]);

for (const [version, engines] of Object.entries(VERL_ENGINES)) {
  run(python, ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", cache, `verl==${version}`]);
  const wheel = `${cache}/verl-${version}-py3-none-any.whl`;
  const trees = JSON.parse(run(python, [at("scripts/verl_trees.py"), wheel]));
  if (Object.keys(trees).sort().join() !== [...engines].sort().join()) {
    throw new Error(`verl ${version} has the engines ${Object.keys(trees)}: write them into VERL_ENGINES`);
  }
  const { shared, own } = splitEngines(trees);
  write(version, undefined, shared);
  for (const engine of engines) write(version, engine, own[engine]);
}

function write(version, engine, settings) {
  const [all, one] = verlFiles(version, engine);
  const file = at(`config/${engine === undefined ? all : one}`);
  mkdirSync(at(`config/verl/${version}`), { recursive: true });
  const options = { head: verlHead(version, engine), sections: VERL_SECTIONS };
  writeFileSync(file, renderFields(verlFields(settings), options));
  console.log(`${file}: ${settings.size} settings`);
}
