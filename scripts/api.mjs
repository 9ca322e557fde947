/**
 * Writes the API reference from the docstrings of the public exports: `node scripts/api.mjs` fills docs/api/ with HTML
 * pages; `--check` writes nothing and exits 1 when a public export has no docstring. Both use `deno doc`.
 */
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const DENO = "deno@2.9.5";
const OUTPUT = "docs/api";

/** Entry points of the package, as deno.json lists them. */
function entryPoints() {
  const { exports } = JSON.parse(readFileSync(`${root}/deno.json`, "utf8"));
  return typeof exports === "string" ? [exports] : Object.values(exports);
}

function denoDoc(args) {
  const command = ["--yes", DENO, "doc", ...args, ...entryPoints()];
  const options = { cwd: root, encoding: "utf8", maxBuffer: 1 << 28, shell: process.platform === "win32" };
  const { status, stdout, stderr } = spawnSync("npx", command, options);
  if (status !== 0) throw new Error(`deno doc failed (${status}):\n${stderr}`);
  return stdout;
}

/** Names of public exports without a docstring. What two entry points export is described by either. */
function undocumented() {
  const { nodes } = JSON.parse(denoDoc(["--json"]));
  const symbols = Object.values(nodes).flatMap((module) => module.symbols);
  const isDocumented = (symbol) =>
    symbol.jsDoc?.doc || symbol.declarations?.some((declaration) => declaration.jsDoc?.doc);
  const documented = new Set(symbols.filter(isDocumented).map(({ name }) => name));
  return [...new Set(symbols.map(({ name }) => name))].filter((name) => !documented.has(name));
}

if (process.argv.includes("--check")) {
  const missing = undocumented();
  if (missing.length > 0) {
    console.error(`${missing.length} public exports have no docstring: ${missing.join(", ")}`);
    process.exitCode = 1;
  }
} else {
  denoDoc(["--html", "--name=grpu", `--output=${OUTPUT}`]);
  console.log(`API reference: ${OUTPUT}/index.html`);
}
