/** `grpu config diff`: two configurations compared by meaning. */
import { SYSTEMS, type TrainingSystem } from "../../cluster/convert/contract.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { packagedText } from "../../train/run/files.ts";
import type { Command, Input, Io } from "../command.ts";
import { EXIT_CONFIG } from "../process/exit.ts";
import { printErrors, readInput, SHELL, shellOptions, toSource } from "./config_sources.ts";

export const diffCommand: Command = {
  path: "config diff",
  summary: "compare two configurations by meaning, across systems",
  args: "<A> <B>",
  options: [
    {
      flag: "--system-a",
      value: "NAME",
      describe: "the system of A; default: guessed from its keys",
      choices: SYSTEMS,
    },
    {
      flag: "--system-b",
      value: "NAME",
      describe: "the system of B; default: guessed from its keys",
      choices: SYSTEMS,
    },
    ...SHELL,
  ],
  examples: ["grpu config diff verl.sh trinity.yaml"],
  notes: "Exits with 0 if both mean the same, with 1 otherwise.",
  run: diff,
};

async function diff({ args, options }: Input, io: Io): Promise<number> {
  const { diffSources, formatDiff } = await import("../../cluster/convert/inspect/diff.ts");
  if (args.length !== 2)
    throw new ConfigError(`Cannot compare: two files are needed (${args.length} given). Name both.`);
  const [a, b] = [await readInput(args[0]!, io), await readInput(args[1]!, io)];
  const shell = shellOptions(options);
  const left = await toSource([a], options.systemA as TrainingSystem | undefined, shell);
  const right = await toSource([b], options.systemB as TrainingSystem | undefined, shell);
  const result = diffSources(left, right, packagedText);
  if (await printErrors(result.problems, io)) return EXIT_CONFIG;
  const text = formatDiff(result, { a: a.name, b: b.name });
  io.out(text);
  if (text === "") io.err("the same\n");
  return text === "" ? 0 : 1;
}
