/** A Python of its own for a test, under .cache/interop. */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const run = promisify(execFile);
const FOLDER = fileURLToPath(new URL("../../.cache/interop", import.meta.url));

/** @returns its Python, with these packages */
export async function environment(name: string, packages: readonly string[]): Promise<string> {
  const folder = `${FOLDER}/${name}`;
  const python = `${folder}/bin/python`;
  if (!existsSync(python)) {
    await mkdir(FOLDER, { recursive: true });
    await run("python3", ["-m", "venv", folder]);
  }
  await run(python, ["-m", "pip", "install", "--quiet", ...packages], { timeout: 600_000 });
  return python;
}
