/** How training on rows ends: the held-out loss and margin that they reached, and what to do next. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import { TINKER_RECORD } from "../../backend/tinker/checkpoint_record.ts";
import type { Input, Io } from "../command.ts";
import { deviceFlag, importsOf } from "../options.ts";
import { commandName, quoted } from "../run/command_line.ts";
import { type TrainEnding, valueChange } from "./train_end.ts";

interface SftEnding extends TrainEnding {
  /** Trained on conversations, so that it answers messages. */
  readonly isChat: boolean;
  readonly command: string;
  readonly input: Input;
  readonly io: Io;
}

export function printSftEnd(ending: SftEnding): void {
  const { outcome, dir, model, best, report, run, isChat, command, input, io } = ending;
  const loss = valueChange(run, /^val\/loss$/);
  io.err("\n");
  if (loss) io.err(`loss     ${loss} on held-out rows\n`);
  const preferred = valueChange(run, /^val\/(rewards\/accuracies|accuracy)$/);
  if (preferred) io.err(`prefers  ${preferred} of held-out pairs as they are chosen\n`);
  if (best) io.err(`best     ${join(dir, best.checkpoint)} (${best.metric} ${best.value.toFixed(3)})\n`);
  if (!outcome.isComplete && model === undefined) io.err("stopped before a checkpoint was saved\n");
  else if (!outcome.isComplete) {
    const flags = [...importsOf(input).flatMap((file) => ["--import", file]), ...deviceFlag(input)];
    const words = [...input.args, "trainer.resume_mode=auto", ...flags].map(quoted);
    io.err(
      `stopped after step ${outcome.state.step}; continue with:  ${commandName(io)} ${command} ${words.join(" ")}\n`,
    );
  }
  if (report && existsSync(report)) io.err(`report   ${report}\n`);
  if (model === undefined) return;
  const record = join(model, TINKER_RECORD);
  if (existsSync(record)) io.err(`saved    on the service; ${record} has the paths\n`);
  else if (command === "reward-model") {
    const use = `reward_model.enable=true reward_model.model.path=${quoted(model)}`;
    io.err(`use      ${commandName(io)} train run.yaml ${use}\n`);
  } else if (isChat) io.err(`chat     ${commandName(io)} chat --model ${quoted(model)}\n`);
  else io.err(`sample   ${commandName(io)} sample --model ${quoted(model)} --prompt "..."\n`);
}
