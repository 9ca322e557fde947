/**
 * rLLM's model gateway and its trainer for the tests that drive them: `RLLM_GATEWAY`, or the checkout in .cache/rllm; and a Python
 * with the dependencies of each: `RLLM_PYTHON`, or environments in .cache/interop that are made here.
 */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { delimiter } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { environment } from "./environment.ts";
import { COOKBOOK, COOKBOOK_NEEDS } from "./sdks.ts";
import { borrowTorch } from "./torch.ts";

const run = promisify(execFile);
const CACHE = fileURLToPath(new URL("../../.cache", import.meta.url));
const PACKAGES = ["fastapi", "uvicorn", "httpx", "pydantic", "aiosqlite", "pyyaml", "pytest", "pytest-asyncio"];

/** What its trainer imports with the Tinker backend; neither verl nor vLLM is among it. */
const TRAINER_PACKAGES = [
  ...["tinker==0.38.0", "hydra-core==1.3.8", "codetiming", "datasets", "pandas", "pyarrow", "openai", "rich", "tqdm"],
  ...["transformers==5.23.0", "polars", "numpy"],
];

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
    return { folder, python: process.env.RLLM_PYTHON ?? (await environment("rllm", PACKAGES)) };
  } catch (error) {
    return skipped(`no Python for rLLM's gateway: ${(error as Error).message.slice(0, 600)}`);
  }
}

function skipped(why: string): undefined {
  console.warn(`SKIPPED: ${why}`);
}

export interface RllmTrainer {
  readonly python: string;
  /** Where Python finds rLLM's packages. */
  readonly path: string;
}

/** Undefined where rLLM's repository, PyTorch or a package is missing; says which. */
export async function rllmTrainer(): Promise<RllmTrainer | undefined> {
  const folder = `${CACHE}/rllm`;
  if (!existsSync(`${folder}/rllm/trainer/tinker`))
    return skipped(`there is no checkout of rLLM in ${folder}; .ci/run makes one where GitHub can be reached`);
  try {
    const python = await environment("rllm_trainer", TRAINER_PACKAGES);
    await run(python, ["-m", "pip", "install", "--quiet", "--no-deps", COOKBOOK], { timeout: 600_000 });
    await run(python, ["-m", "pip", "install", "--quiet", ...COOKBOOK_NEEDS], { timeout: 600_000 });
    await borrowTorch(python);
    const path = [folder, `${folder}/rllm-model-gateway/src`].join(delimiter);
    const env = { ...process.env, PYTHONPATH: path };
    await run(python, ["-c", "import rllm.trainer.tinker.tinker_launcher, rllm.workflows.simple_workflow"], { env });
    return { python, path };
  } catch (error) {
    return skipped(`no Python for rLLM's trainer: ${(error as Error).message.slice(0, 600)}`);
  }
}
