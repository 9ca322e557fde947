/** A command that trains: makes the run, says what it is made of, what it reached and what to do next. */
import { existsSync } from "node:fs";
import { labelled } from "../../train/log/format.ts";
import { summary } from "../../train/run/ending.ts";
import { quoted } from "../../train/run/quoted.ts";
import type { RunRequest } from "../../train/run/recipe.ts";
import type { RecipeName } from "../../train/run/recipes.ts";
import type { RecipeRunOptions, RunEnding, RunHead, RunView } from "../../train/run/run_recipe.ts";
import type { Input, Io } from "../command.ts";
import { commandName } from "../command_line.ts";
import { deviceFlag, deviceOverride, importsOf } from "../options.ts";
import { EXIT_OK, interruptedStatus } from "../process/exit.ts";

/** A recipe as the command line asks for it. */
export function requestOf(input: Input): RunRequest {
  return { args: input.args, imports: importsOf(input), overrides: deviceOverride(input) };
}

/** The command of a recipe, from its command line to its status. */
export async function recipeCommand(name: RecipeName, { input, io }: Called): Promise<number> {
  const { RECIPES } = await import("../../train/run/recipes.ts");
  return reporting(name, { input, io }, (options) => RECIPES[name](requestOf(input), options));
}

/** Makes a run and reports it. Returns the status. */
export async function reporting(
  name: RecipeName,
  { input, io }: Called,
  make: (options: RecipeRunOptions) => Promise<unknown>,
): Promise<number> {
  let status = EXIT_OK;
  const view: RunView = {
    begin: (head) => announce(head, io),
    end(ending) {
      if (input.options.json) io.out(`${JSON.stringify(summary(ending))}\n`);
      printEnding(ending, { name, input, io });
      status = io.signal.aborted ? interruptedStatus(io.signal) : EXIT_OK;
    },
  };
  await make({ io, view, isProfiled: input.options.profile === true });
  return status;
}

interface Called {
  readonly input: Input;
  readonly io: Io;
}

/** Says what a run is made of. */
export function announce({ lines, dir, isWatchable }: RunHead, io: Io): void {
  const width = io.isTerminal ? io.columns : Number.POSITIVE_INFINITY;
  const say = (label: string, text: string) => io.err(labelled(label, text, width));
  for (const [label, text] of lines) say(label, text);
  if (isWatchable) say("watch", `${commandName(io)} view ${quoted(dir)}`);
  io.err("\n");
}

interface EndingRequest extends Called {
  readonly name: RecipeName;
}

function printEnding(ending: RunEnding, { name, input, io }: EndingRequest): void {
  const { outcome, model, report, reached, saved, command } = ending;
  const say = (label: string, text: string) => io.err(`${label.padEnd(8)} ${text}\n`);
  io.err("\n");
  for (const [label, text] of reached) say(label, text);
  if (!outcome.isComplete && model === undefined) io.err("stopped before a checkpoint was saved\n");
  else if (!outcome.isComplete) {
    const flags = [...importsOf(input).flatMap((file) => ["--import", file]), ...deviceFlag(input)];
    const words = [...input.args, ending.resume, ...flags].map(quoted);
    const resume = `${commandName(io)} ${name} ${words.join(" ")}`;
    io.err(`stopped after step ${outcome.state.step}; continue with:  ${resume}\n`);
  }
  if (report && existsSync(report)) say("report", report);
  if (saved) say(...saved);
  if (command) say(command[0], `${commandName(io)} ${command[1]}`);
}
