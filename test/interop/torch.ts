/** PyTorch and transformers where `.ci/run` installs them. They take gigabytes: other environments read them there. */
import { execFile } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const TORCH =
  process.env.TORCH_PYTHON ?? fileURLToPath(new URL("../../.cache/transformers/bin/python", import.meta.url));

const run = promisify(execFile);

/**
 * Lets an environment import PyTorch and the packages installed with it. Its own packages come first.
 *
 * @throws Error if there is no PyTorch
 */
export async function borrowTorch(python: string): Promise<void> {
  const { stdout: torch } = await run(TORCH, ["-c", "import torch, transformers; print(torch.__path__[0])"]);
  const { stdout: packages } = await run(python, ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]);
  await writeFile(`${packages.trim()}/zz_torch.pth`, `${torch.trim().replace(/\/torch$/, "")}\n`);
}
