/** Installs the SDKs of the tests, each in a separate environment under .cache/interop. */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import type { TestProject } from "vitest/node";
import { borrowTorch } from "./torch.ts";

export interface Sdk {
  /** `tinker 0.25.0`. */
  readonly name: string;
  readonly python?: string;
  /** Why it could not be installed. */
  readonly missing?: string;
  readonly hasTorch: boolean;
  readonly hasCookbook: boolean;
}

declare module "vitest" {
  interface ProvidedContext {
    sdks: readonly Sdk[];
  }
}

const run = promisify(execFile);
const CACHE = fileURLToPath(new URL("../../.cache/interop", import.meta.url));

/** The oldest release with today's protocol, and the newest release. */
const WANTED = [
  { folder: "oldest", packages: ["tinker==0.25.0"], upgrade: false, cookbook: false },
  { folder: "newest", packages: ["tinker"], upgrade: true, cookbook: true },
] as const;

/**
 * The newest cookbook, installed without its requirements: it asks for `tml-renderers>=0.4.1`, which is not published and which only
 * its audio recipes and Thinking Machines' own models import. With requirements, pip would install an older cookbook without a word.
 */
export const COOKBOOK = "tinker-cookbook==0.6.1";
/** What its recipes import beyond what the SDK brings. */
export const COOKBOOK_NEEDS: readonly string[] = [
  ...["chz", "datasets", "termcolor", "blobfile", "aiohttp", "tiktoken", "pillow", "cloudpickle", "pyrage"],
  ...["sympy", "pylatexenc", "math-verify"],
];

export default async function setup(project: TestProject): Promise<void> {
  const sdks: Sdk[] = [];
  for (const wanted of WANTED)
    sdks.push(
      await install(wanted).catch((error: Error) => ({
        name: wanted.packages.join(" "),
        missing: error.message.slice(0, 600),
        hasTorch: false,
        hasCookbook: false,
      })),
    );
  for (const { name, missing } of sdks)
    console.warn(missing ? `SKIPPED: ${name}: ${missing}` : `driving the server with ${name}`);
  project.provide("sdks", sdks);
}

async function install(of: (typeof WANTED)[number]): Promise<Sdk> {
  const folder = `${CACHE}/${of.folder}`;
  const python = `${folder}/bin/python`;
  if (!existsSync(python)) {
    await run("python3", ["-c", "import sys; assert sys.version_info >= (3, 11), 'the SDK needs Python 3.11'"]);
    await mkdir(CACHE, { recursive: true });
    await run("python3", ["-m", "venv", folder]);
  }
  const pip = (packages: readonly string[]) =>
    run(python, ["-m", "pip", "install", "--quiet", ...(of.upgrade ? ["--upgrade"] : []), ...packages], {
      timeout: 600_000,
    });
  await pip(of.packages);
  await borrowTorch(python).catch(() => undefined);
  const hasTorch = await imports(python, "torch");
  const hasCookbook =
    of.cookbook &&
    hasTorch &&
    (await pip(["--no-deps", COOKBOOK])
      .then(() => pip(COOKBOOK_NEEDS))
      .then(
        () => imports(python, "tinker_cookbook.recipes.rl_loop"),
        () => false,
      ));
  const { stdout } = await run(python, ["-c", "import tinker; print(tinker.__version__)"]);
  return { name: `tinker ${stdout.trim()}`, python, hasTorch, hasCookbook };
}

function imports(python: string, module: string): Promise<boolean> {
  return run(python, ["-c", `import ${module}`]).then(
    () => true,
    () => false,
  );
}
