/** `grpu config validate`: every problem of a configuration file, with its line. */
import { SYSTEMS, type TrainingSystem } from "../../cluster/convert/contract.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { splitArguments } from "../../train/run/arguments.ts";
import type { Command, Input, Io } from "../command.ts";
import { EXIT_CONFIG, EXIT_OK } from "../process/exit.ts";
import { configFiles, readInput, SHELL, shellOptions } from "./config_sources.ts";

export const validateCommand: Command = {
  path: "config validate",
  summary: "check files and print every problem with its line",
  args: "<FILE ...> [key=value ...]",
  options: [
    {
      flag: "--system",
      value: "NAME",
      describe: "the system it is written for; default: guessed from its keys",
      choices: SYSTEMS,
    },
    ...SHELL,
  ],
  examples: [
    "grpu config validate run.yaml",
    "grpu config validate run.yaml rllm/backend=tinker rllm.rollout.n=4",
    "grpu config validate --system verl train.sh",
  ],
  notes: "Overrides apply to each file, as they do with grpu train.",
  run: validate,
};

async function validate({ args, options }: Input, io: Io): Promise<number> {
  const { validateFile } = await import("../../cluster/convert/inspect/validate.ts");
  const { formatProblem } = await import("../../train/config/problem.ts");
  const { files, overrides } = splitArguments(args);
  if (args.length === 0) throw new ConfigError("Cannot validate: no file is given. Name one, or - for standard input.");
  const system = options.system as TrainingSystem | undefined;
  const shared = { ...configFiles(), env: io.env, system, overrides, shell: shellOptions(options) };
  let errors = 0;
  for (const name of files.length === 0 ? [undefined] : files) {
    const file = name === undefined ? undefined : await readInput(name, io);
    const result = validateFile(file, shared);
    const shown = file?.name ?? "overrides";
    for (const problem of result.problems) io.out(`${formatProblem({ ...problem, file: problem.file ?? shown })}\n`);
    const count = result.problems.filter(({ severity }) => severity === "error").length;
    io.err(`${shown}: ${result.system}, ${countOf(count)}\n`);
    if (result.missing.length > 0) io.err(`A run with it also needs ${result.missing.join(", ")}\n`);
    errors += count;
  }
  return errors === 0 ? EXIT_OK : EXIT_CONFIG;
}

function countOf(errors: number): string {
  return errors === 0 ? "no errors" : errors === 1 ? "1 error" : `${errors} errors`;
}
