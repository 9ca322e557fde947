/** verl's published packages on a CPU, without an inference engine: unpacked under .cache/verl, beside PyTorch. */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { type AddressInfo, createServer } from "node:net";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { borrowTorch } from "./torch.ts";

const at = (path: string) => fileURLToPath(new URL(`../../.cache/${path}`, import.meta.url));
const FOLDER = at("verl");
const PYTHON = at("verl/run/bin/python");
const INSTALL_MS = 10 * 60_000;
const CHECKS_MS = 4 * 60_000;

/** What verl imports besides PyTorch, transformers and PEFT. */
const PACKAGES = [
  ...["ray[default]==2.60.0", "hydra-core==1.3.8", "omegaconf==2.3.1", "tensordict==0.10.0", "TransferQueue==0.1.11"],
  ...["torchdata==0.11.0", "accelerate==1.15.0", "datasets==5.2.0", "pandas==3.1.1", "pyarrow==26.0.1"],
  ...["cachetools==8.0.1", "fastapi==0.165.0", "uvicorn==0.54.0", "codetiming==1.4.0", "dill==0.4.1"],
  ...["orjson==3.13.0", "pillow==13.0.0", "tensorboard==2.21.0"],
];

export interface VerlPython {
  readonly python: string;
  /** Folder of a version's package, for PYTHONPATH. */
  packageOf(version: string): string;
  /** The downloaded archive of a version. */
  wheelOf(version: string): string;
}

const run = promisify(execFile);

/** @returns the reason if it cannot be installed. */
export async function installVerl(versions: readonly string[]): Promise<VerlPython | string> {
  const wheelOf = (version: string) => `${FOLDER}/verl-${version}-py3-none-any.whl`;
  const packageOf = (version: string) => `${FOLDER}/src/${version}`;
  try {
    await mkdir(FOLDER, { recursive: true });
    if (!existsSync(PYTHON)) await run("python3", ["-m", "venv", `${FOLDER}/run`]);
    await borrowTorch(PYTHON);
    await run(PYTHON, ["-m", "pip", "install", "--quiet", ...PACKAGES], { timeout: INSTALL_MS });
    for (const version of versions) {
      const download = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", FOLDER, `verl==${version}`];
      if (!existsSync(wheelOf(version))) await run(PYTHON, download);
      if (!existsSync(packageOf(version)))
        await run(PYTHON, ["-m", "zipfile", "-e", wheelOf(version), packageOf(version)]);
    }
  } catch (error) {
    return (error as Error).message.slice(0, 600);
  }
  return { python: PYTHON, packageOf, wheelOf };
}

export interface ChecksRequest {
  readonly version: string;
  /** The working directory of the job. */
  readonly folder: string;
  readonly env: Readonly<Record<string, string>>;
  readonly body: unknown;
}

/** Runs verl_checks.py in a job's working directory. */
export async function runChecks<T>(verl: VerlPython, { version, folder, env, body }: ChecksRequest): Promise<T> {
  const [asked, answered] = [`${folder}/asked.json`, `${folder}/answered.json`];
  await writeFile(asked, JSON.stringify(body));
  const script = fileURLToPath(new URL("verl_checks.py", import.meta.url));
  await run(verl.python, [script, asked, answered], {
    cwd: folder,
    env: { ...process.env, ...env, ...cpuEnv(), PYTHONPATH: `${folder}:${verl.packageOf(version)}` },
    timeout: CHECKS_MS,
    maxBuffer: 2 ** 26,
  });
  return JSON.parse(await readFile(answered, "utf8")) as T;
}

export function cpuEnv(): Record<string, string> {
  return { CUDA_VISIBLE_DEVICES: "", OMP_NUM_THREADS: "1", HF_HUB_OFFLINE: "1", TOKENIZERS_PARALLELISM: "false" };
}

export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as AddressInfo;
      server.close(() => resolve(port));
    });
  });
}
