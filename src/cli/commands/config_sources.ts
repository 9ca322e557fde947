/** Inputs of the commands of `grpu config`: files and overrides of any of the systems, and the packaged defaults. */

import type { ConvertedSource, TrainingSystem } from "../../cluster/convert/contract.ts";
import type { ShellOptions } from "../../cluster/convert/shell/read.ts";
import type { SourceFile } from "../../cluster/convert/source/read.ts";
import { ConfigError } from "../../leaves/errors.ts";
import type { Problem } from "../../train/config/problem.ts";
import { locate, packagedText, readText, readTextIfPresent } from "../../train/run/files.ts";
import type { Input, Io, Option } from "../command.ts";

export const CONFIG: Option = {
  flag: "--config",
  value: "FILE",
  describe: "YAML file that overrides the defaults; may repeat",
  repeat: true,
};
export const SHELL: readonly Option[] = [
  {
    flag: "--env",
    value: "NAME=VALUE",
    describe: "environment variable for a shell script; may repeat",
    repeat: true,
  },
  { flag: "--arg", value: "VALUE", describe: "$1, $2, ... of a shell script; may repeat", repeat: true },
];
/** How `composeConfig` reads files on this machine: the package's own, and the user's. */
export function configFiles(): {
  readConfig(name: string): string | undefined;
  readFile(path: string): string | undefined;
} {
  return { readConfig: packagedText, readFile: userText };
}

/** Text of a user's file; undefined where there is none, or a folder. */
function userText(path: string): string | undefined {
  try {
    return readTextIfPresent(locate(path));
  } catch {
    return undefined;
  }
}

/** `--env` and `--arg`. */
export function shellOptions(options: Input["options"]): ShellOptions {
  const env = optionList(options.env).map((pair): [string, string] => {
    const match = /^([A-Za-z_]\w*)=([\s\S]*)$/.exec(pair);
    if (match === null) throw new ConfigError(`Cannot read --env: it has no NAME= (${pair}). Write NAME=VALUE.`);
    return [match[1]!, match[2]!];
  });
  return { env: new Map(env), args: optionList(options.arg) };
}

/** The values of files of one system, which is recognised by their keys where it is not named. */
export async function toSource(
  files: readonly SourceFile[],
  system?: TrainingSystem,
  shell?: ShellOptions,
): Promise<ConvertedSource> {
  const [{ readSource }, { detectSystem }] = await Promise.all([
    import("../../cluster/convert/source/read.ts"),
    import("../../cluster/convert/inspect/validate.ts"),
  ]);
  const source = readSource(files, system ?? "verl", { ...shell, readConfig: packagedText });
  return { ...source, system: system ?? detectSystem(source.values.keys()) };
}

/** A file by name; `-` is standard input. */
export async function readInput(name: string, io: Io): Promise<SourceFile> {
  if (name === "-") return { name: "standard input", text: await io.stdin() };
  return { name, text: userText(name) ?? readText(name, "configuration") };
}

/** Prints problems and warnings for people. @returns whether there was an error. */
export async function printProblems(
  problems: readonly Problem[],
  warnings: readonly Problem[],
  io: Io,
): Promise<boolean> {
  const { formatProblem } = await import("../../train/config/problem.ts");
  for (const problem of [...problems, ...warnings]) io.err(`${formatProblem(problem)}\n`);
  if (problems.length > 1) io.err(`${problems.length} problems\n`);
  return problems.length > 0;
}

/** Prints the errors among problems. @returns whether there was one */
export function printErrors(problems: readonly Problem[], io: Io): Promise<boolean> {
  return printProblems(
    problems.filter(({ severity }) => severity === "error"),
    [],
    io,
  );
}

/** The values of an option that may repeat. */
export function optionList(value: string | boolean | readonly string[] | undefined): string[] {
  if (value === undefined || typeof value === "boolean") return [];
  return typeof value === "string" ? [value] : [...value];
}
