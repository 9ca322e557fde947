/**
 * rLLM's model gateway for the tests that drive it: `RLLM_GATEWAY`, or the checkout in .cache/rllm; and a Python with its
 * dependencies: `RLLM_PYTHON`, or an environment in .cache/interop that is made here.
 */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const run = promisify(execFile);
const CACHE = fileURLToPath(new URL("../../.cache", import.meta.url));
const PACKAGES = ["fastapi", "uvicorn", "httpx", "pydantic", "aiosqlite", "pyyaml", "pytest", "pytest-asyncio"];

export interface RllmGateway {
  /** Of the package rllm-model-gateway, with `src` and `tests`. */
  readonly folder: string;
  readonly python: string;
}

/** Undefined where one of the two is missing; says which. */
export async function rllmGateway(): Promise<RllmGateway | undefined> {
  const folder = process.env.RLLM_GATEWAY ?? `${CACHE}/rllm/rllm-model-gateway`;
  if (!existsSync(`${folder}/src/rllm_model_gateway`))
    return skipped(`there is no rllm-model-gateway in ${folder}; set RLLM_GATEWAY`);
  try {
    return { folder, python: process.env.RLLM_PYTHON ?? (await environment()) };
  } catch (error) {
    return skipped(`no Python for rLLM's gateway: ${(error as Error).message.slice(0, 600)}`);
  }
}

function skipped(why: string): undefined {
  console.warn(`SKIPPED: ${why}`);
}

async function environment(): Promise<string> {
  const folder = `${CACHE}/interop/rllm`;
  const python = `${folder}/bin/python`;
  if (!existsSync(python)) {
    await mkdir(`${CACHE}/interop`, { recursive: true });
    await run("python3", ["-m", "venv", folder]);
  }
  await run(python, ["-m", "pip", "install", "--quiet", ...PACKAGES], { timeout: 600_000 });
  return python;
}
