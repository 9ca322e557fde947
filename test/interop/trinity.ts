/** Trinity-RFT's published package on a CPU, unpacked under .cache/trinity, with PyTorch and transformers from where CI has them. */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { borrowTorch } from "./torch.ts";
import { cpuEnv } from "./verl.ts";

const at = (path: string) => fileURLToPath(new URL(`../../.cache/${path}`, import.meta.url));
const FOLDER = at("trinity");
const PYTHON = `${FOLDER}/python/bin/python`;
const VERSION = "0.6.0";
const INSTALL_MS = 10 * 60_000;
const CHECKS_MS = 4 * 60_000;

/** What the parts of Trinity that run here import, besides PyTorch and transformers. */
const PACKAGES = [
  ...["ray[default]==2.60.0", "omegaconf==2.3.1", "sqlalchemy[asyncio]", "aiosqlite", "tensorboard==2.21.0", "openai"],
  ...["jsonlines", "sortedcontainers", "pandas==3.1.1", "pyarrow==26.0.1", "datasets==5.2.0", "typer", "tinker"],
  ...["cachetools==8.0.1", "psutil", "pybase64"],
];

/** Trinity imports these of vLLM in every mode, for pictures; without a GPU there is no vLLM, and nothing here calls them. */
const STUB: Readonly<Record<string, string>> = {
  "vllm/__init__.py": "",
  "vllm/config.py": "class ModelConfig: pass\n",
  "vllm/inputs.py": "class MultiModalDataDict: pass\n",
  "vllm/entrypoints/__init__.py": "",
  "vllm/entrypoints/chat_utils.py":
    "class ChatTemplateContentFormat: pass\nclass ConversationMessage: pass\nparse_chat_messages = parse_chat_messages_async = None\n",
};

export interface TrinityPython {
  readonly python: string;
  /** For PYTHONPATH: Trinity's package, and the stub of vLLM. */
  readonly paths: readonly string[];
}

const run = promisify(execFile);

/** @returns the reason if it cannot be installed */
export async function installTrinity(): Promise<TrinityPython | string> {
  const wheel = `${FOLDER}/trinity_rft-${VERSION}-py3-none-any.whl`;
  const [source, stub] = [`${FOLDER}/src`, `${FOLDER}/stub`];
  try {
    await mkdir(FOLDER, { recursive: true });
    if (!existsSync(PYTHON)) await run("python3", ["-m", "venv", `${FOLDER}/python`]);
    await borrowTorch(PYTHON);
    await run(PYTHON, ["-m", "pip", "install", "--quiet", ...PACKAGES], { timeout: INSTALL_MS });
    const download = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", FOLDER, `trinity-rft==${VERSION}`];
    if (!existsSync(wheel)) await run(PYTHON, download);
    if (!existsSync(source)) await run(PYTHON, ["-m", "zipfile", "-e", wheel, source]);
    for (const [name, text] of Object.entries(STUB)) {
      await mkdir(dirname(`${stub}/${name}`), { recursive: true });
      await writeFile(`${stub}/${name}`, text);
    }
  } catch (error) {
    return (error as Error).message.slice(0, 600);
  }
  return { python: PYTHON, paths: [source, stub] };
}

export function trinityEnv({ paths }: TrinityPython, folders: readonly string[] = []): Record<string, string> {
  return { ...cpuEnv(), PYTHONPATH: [...folders, ...paths].join(":") };
}

export interface TrinityChecks {
  /** The working directory of the job. */
  readonly folder: string;
  readonly env: Readonly<Record<string, string>>;
  readonly body: unknown;
}

/** Runs trinity_checks.py in a job's working directory. */
export async function runTrinityChecks<T>(trinity: TrinityPython, { folder, env, body }: TrinityChecks): Promise<T> {
  const [asked, answered] = [`${folder}/asked.json`, `${folder}/answered.json`];
  await writeFile(asked, JSON.stringify(body));
  const script = fileURLToPath(new URL("trinity_checks.py", import.meta.url));
  await run(trinity.python, [script, asked, answered], {
    cwd: folder,
    env: { ...process.env, ...env, ...trinityEnv(trinity, [folder]) },
    timeout: CHECKS_MS,
    maxBuffer: 2 ** 26,
  });
  return JSON.parse(await readFile(answered, "utf8")) as T;
}
