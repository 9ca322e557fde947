/** Composes the settings of a run from files and overrides, checked, with the names that the user's modules register. */

import { ConfigError } from "../../leaves/errors.ts";
import { type Composed, composeConfig } from "../config/compose.ts";
import type { RowCommand } from "../config/fields/reward_model.ts";
import { formatProblem, type Problem } from "../config/problem.ts";
import { fieldAt } from "../config/schema.ts";
import { LEVEL, originOf } from "../config/yaml/layer.ts";
import { leaves } from "../config/yaml/tree.ts";
import { splitArguments } from "./arguments.ts";
import { locate, nearestFile, packagedText, readTextIfPresent } from "./files.ts";
import type { RunIo } from "./io.ts";
import { importModules } from "./task/modules.ts";

export interface RunSessionOptions {
  /** Files and overrides, as typed. */
  readonly args: readonly string[];
  /** Modules of the user's. */
  readonly imports: readonly string[];
  /** More overrides, from flags. */
  readonly overrides?: readonly string[];
  /** Settings that the backend cannot honour are warned of, not refused. */
  readonly allowUnsupported?: boolean;
  /** Training data may be missing, because the run trains on traces. Default false. */
  readonly isRecorded?: boolean;
}

interface ComposeOptions {
  readonly io: RunIo;
  /** Recipe whose settings are composed. Default: a training run. */
  readonly base?: RowCommand;
  /** Names that a setting takes besides, once the modules are imported. */
  readonly registered: () => Readonly<Record<string, readonly string[]>>;
  /** Default: every warning. */
  readonly isShown?: (warning: Problem) => boolean;
}

interface ComposedFiles {
  readonly composed: Composed;
  /** Whether a file or the command line names the setting, as opposed to a default. */
  readonly isGiven: (path: string) => boolean;
  /** Keys of the user's own, which no table of settings has. */
  readonly added: readonly string[];
}

/**
 * Imports the modules, composes the configuration and prints what it warns of.
 * @throws {ConfigError} that names the file or key to correct
 */
export async function composeFiles(
  { args, imports, overrides = [], allowUnsupported = false }: RunSessionOptions,
  { io, base, registered, isShown = () => true }: ComposeOptions,
): Promise<ComposedFiles> {
  await importModules(imports);
  const split = splitArguments(args);
  for (const file of split.files) requireFile(file);
  // They register what the settings name.
  await import("../../engine/algorithm/loss/losses.ts");
  await import("../../engine/algorithm/advantage/host.ts");
  const composed = composeConfig({
    ...(base && { base }),
    files: split.files,
    overrides: [...split.overrides, ...overrides],
    allowUnsupported,
    readFile: (path) => readTextIfPresent(locate(path)),
    readConfig: packagedText,
    env: io.env,
    registered: registered(),
  });
  for (const warning of composed.warnings.filter(isShown)) io.err(`${formatProblem(warning)}\n`);
  const isGiven = (path: string) => (originOf(composed.origins, path)?.level ?? LEVEL.native) >= LEVEL.file;
  const paths = [...leaves(composed.config)].map(([path]) => path);
  return { composed, isGiven, added: paths.filter((path) => !fieldAt(composed.schema, path)) };
}

/** @throws {ConfigError} with the nearest name where there is no such file */
function requireFile(path: string): void {
  if (readTextIfPresent(locate(path)) !== undefined) return;
  throw new ConfigError(
    `Cannot read the configuration: there is no such file (${path}).${nearestFile(path)} Overrides are written key=value.`,
    { kind: "data" },
  );
}
