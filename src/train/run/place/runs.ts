/** Run folders that a person names. */
import { basename, dirname, resolve } from "node:path";
import { ConfigError } from "../../../leaves/errors.ts";
import { readYaml } from "../../config/yaml/read.ts";
import { flatten } from "../../config/yaml/tree.ts";
import { isRunFolder, RunFolder } from "../../log/page/run_folder.ts";
import { nearestFile } from "../files.ts";

/** @throws {ConfigError} for a folder that no run wrote. */
export function openRuns(dirs: readonly string[]): RunFolder[] {
  if (dirs.length === 0) {
    throw new ConfigError(
      "Cannot show a run: none is named. Give its folder, for instance checkpoints/grpu/arithmetic.",
    );
  }
  for (const dir of dirs) {
    if (isRunFolder(dir)) continue;
    throw new ConfigError(
      `Cannot show the run: the folder has no metrics.jsonl and no config.yaml (${dir}).${nearestFile(dir)} The loggers jsonl and report write them.`,
      { kind: "data" },
    );
  }
  const names = runNames(dirs);
  return dirs.map((dir, i) => new RunFolder(dir, { settingsOf, name: names[i] }));
}

/** The shortest unique ends of the paths. */
export function runNames(dirs: readonly string[]): string[] {
  const short = dirs.map((dir) => basename(resolve(dir)));
  if (new Set(short).size === dirs.length) return short;
  const longer = dirs.map((dir) => `${basename(dirname(resolve(dir)))}/${basename(resolve(dir))}`);
  return new Set(longer).size === dirs.length ? longer : dirs.map((dir, i) => `${dir} (${i + 1})`);
}

function settingsOf(text: string): Record<string, string> {
  try {
    const values = flatten(readYaml(text, "config.yaml").tree);
    return Object.fromEntries([...values].map(([path, value]) => [path, JSON.stringify(value)]));
  } catch (error) {
    // It is being written; the page shows it the next time.
    if (error instanceof ConfigError) return {};
    throw error;
  }
}
