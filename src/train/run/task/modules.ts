/**
 * Loads what `--import` names: a user's module that registers rewards, environments, estimators, losses, stages,
 * groupings, rejections, backends or loggers.
 */
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { ConfigError } from "../../../leaves/errors.ts";
import { nearestFile } from "../files.ts";

/**
 * Imports modules in order. TypeScript is run as it is; `grpu` in it is this very program, whatever is installed where,
 * and `zod` comes with it.
 * @throws {ConfigError} for a file that does not exist or that fails while it loads.
 */
export async function importModules(paths: readonly string[]): Promise<void> {
  for (const path of paths) {
    const file = resolve(path);
    if (!existsSync(file)) {
      throw new ConfigError(`Cannot import the module: there is no such file (${path}).${nearestFile(path)}`, {
        kind: "data",
      });
    }
    try {
      await load(file);
    } catch (error) {
      if (error instanceof ConfigError) throw error;
      const { message } = error as Error;
      throw new ConfigError(`Cannot import the module: it fails while it loads: ${message}`, {
        file: path,
      });
    }
  }
}

/** Address of the door of serving, which opens files of this folder. */
const SERVING = new URL(`../../../serving${import.meta.url.slice(import.meta.url.lastIndexOf("."))}`, import.meta.url)
  .href;

async function load(file: string): Promise<void> {
  // Deno runs TypeScript itself, and finds "grpu" by the import map of deno.json.
  if ("Deno" in globalThis) {
    await import(pathToFileURL(file).href);
    return;
  }
  const { createJiti } = await import("jiti");
  const virtualModules = {
    grpu: await import("../../../mod.ts"),
    "grpu/algorithm": await import("../../../engine/algorithm/mod.ts"),
    "grpu/chat": await import("../../../chat/mod.ts"),
    "grpu/compute": await import("../../../engine/compute/mod.ts"),
    "grpu/model": await import("../../../engine/model/mod.ts"),
    "grpu/node": await import("../../../node.ts"),
    "grpu/serving": await import(SERVING),
    "grpu/train": await import("../../loop/mod.ts"),
    zod: await import("zod"),
  };
  const jiti = createJiti(import.meta.url, { virtualModules, interopDefault: false });
  await jiti.import(file);
}
