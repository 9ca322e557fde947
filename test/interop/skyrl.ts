/** SkyRL's server of Tinker's protocol, on the CPU. Installed under .cache/interop if Python and PyTorch exist. */
import { execFile, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { chmod, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

/** With an SDK whose types it supports. */
const PACKAGES = ["skyrl[tinker,jax]==0.3.0", "tinker==0.24.1"];
const FOLDER = fileURLToPath(new URL("../../.cache/interop/skyrl", import.meta.url));
const INSTALL_MS = 15 * 60_000;
const START_MS = 3 * 60_000;

export interface SkyRl {
  /** A folder with a program `uv`: the server must be its child, and starts its engine through it. */
  readonly shim: string;
}

const run = promisify(execFile);

/** @returns the reason if it cannot be installed. */
export async function installSkyRl(): Promise<SkyRl | string> {
  const python = `${FOLDER}/bin/python`;
  try {
    // Its requirements would install another PyTorch of gigabytes.
    await run("python3", ["-c", "import sys, torch; assert sys.version_info >= (3, 11), 'it needs Python 3.11'"]);
    if (!existsSync(python)) {
      await mkdir(FOLDER, { recursive: true });
      await run("python3", ["-m", "venv", "--system-site-packages", FOLDER]);
    }
    await run(python, ["-m", "pip", "install", "--quiet", ...PACKAGES], { timeout: INSTALL_MS });
    await mendTypedDict(python);
    await run(python, ["-c", "import jax, skyrl.tinker.api"]);
  } catch (error) {
    return (error as Error).message.slice(0, 600);
  }
  const shim = `${FOLDER}/shim`;
  await mkdir(shim, { recursive: true });
  const text = `#!/bin/sh\nwhile [ "$1" != "-m" ]; do shift; done\n"${python}" "$@"\nexit $?\n`;
  await writeFile(`${shim}/uv`, text);
  await chmod(`${shim}/uv`, 0o755);
  return { shim };
}

/** Its requests use `typing.TypedDict`, which pydantic refuses below Python 3.12; `typing_extensions` replaces it there. */
async function mendTypedDict(python: string): Promise<void> {
  const { stdout } = await run(python, ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]);
  const text =
    "import sys, typing, typing_extensions\nif sys.version_info < (3, 12):\n    typing.TypedDict = typing_extensions.TypedDict\n";
  await writeFile(join(stdout.trim(), "sitecustomize.py"), text);
}

export interface SkyRlServer {
  readonly url: string;
  said(): string;
  stop(): Promise<void>;
}

export async function startSkyRl({ shim }: SkyRl, model: string): Promise<SkyRlServer> {
  const root = await mkdtemp(join(tmpdir(), "grpu-skyrl-"));
  const port = await freePort();
  const args = [
    ...["run", "-m", "skyrl.tinker.api", "--base-model", model, "--backend", "jax"],
    ...["--checkpoints-base", join(root, "saved"), "--database-url", `sqlite:///${join(root, "db.sqlite")}`],
    ...["--host", "127.0.0.1", "--port", String(port)],
  ];
  const env = {
    ...process.env,
    PATH: `${shim}:${process.env.PATH}`,
    HF_HUB_OFFLINE: "1",
    JAX_PLATFORMS: "cpu",
  };
  // In a separate process group, with the engine that it starts.
  const child = spawn(`${shim}/uv`, args, { env, cwd: root, detached: true });
  let said = "";
  for (const stream of [child.stdout, child.stderr])
    stream.on("data", (data) => {
      said += data;
    });
  const url = `http://127.0.0.1:${port}`;
  const stop = async () => {
    try {
      process.kill(-(child.pid as number), "SIGKILL");
    } catch {
      // It has already ended.
    }
    await rm(root, { recursive: true, force: true });
  };
  try {
    await answering(url, () => child.exitCode === null);
  } catch (error) {
    await stop();
    throw new Error(`${error}: ${said.slice(-3000)}`);
  }
  return { url, said: () => said, stop };
}

async function answering(url: string, isAlive: () => boolean): Promise<void> {
  for (const end = Date.now() + START_MS; Date.now() < end && isAlive(); ) {
    const answer = await fetch(`${url}/api/v1/healthz`).catch(() => undefined);
    if (answer?.ok) return;
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
  throw new Error("SkyRL's server does not answer");
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address() as { port: number };
      server.close(() => resolve(port));
    });
  });
}
