/** The loggers that `rllm.trainer.logger` names. */
import { join } from "node:path";
import { UnsupportedError } from "../../../leaves/errors.ts";
import { setting } from "../../config/schema.ts";
import { maskTree } from "../../config/secret.ts";
import type { Tree } from "../../config/yaml/tree.ts";
import type { Logger } from "../../log/logger.ts";
import { ConsoleLogger } from "../../log/loggers/console.ts";
import { EpisodeFiles } from "../../log/loggers/episode_files.ts";
import { jsonlFiles } from "../../log/loggers/jsonl.ts";
import { loggers } from "../../log/loggers/loggers.ts";
import { EVENTS_FILE, TensorBoardFile } from "../../log/loggers/tensorboard.ts";
import { checkWandb, openWandb, type WandbOptions } from "../../log/loggers/wandb.ts";
import type { RunIo } from "../io.ts";

const LOGGERS = ["console", "jsonl", "report", "tensorboard", "wandb"];

/** Called before a folder is touched or a device opened. */
export function checkLoggers(config: Tree, io: RunIo): void {
  const names = setting(config, "rllm.trainer.logger");
  if (names.includes("wandb") && !loggers.has("wandb")) checkWandb(io.env);
  const other = names.find((name) => !LOGGERS.includes(name) && !loggers.has(name));
  if (!other) return;
  throw new UnsupportedError(
    `Cannot log to ${other}: there is no such logger. Use ${LOGGERS.join(", ")}, or register one in a module of --import.`,
    { part: "log", capability: other },
  );
}

export function openLoggers({ config, dir, io }: { config: Tree; dir: string; io: RunIo }): Logger[] {
  const names = setting(config, "rllm.trainer.logger");
  const registered = names.flatMap((name) => loggers.get(name) ?? []);
  const hasFiles = names.includes("jsonl") || names.includes("report");
  return [
    names.includes("console") ? new ConsoleLogger(io) : warningsOnly(io),
    ...(hasFiles ? jsonlFiles(dir) : []),
    ...(names.includes("tensorboard") ? [new TensorBoardFile(join(dir, "tensorboard", EVENTS_FILE))] : []),
    ...(names.includes("wandb") && !loggers.has("wandb") ? openWandb(wandbRun({ config, dir, io })) : []),
    ...registered.map((open) => open({ dir })),
    ...(setting(config, "rllm.episode_logging.log_episodes")
      ? [new EpisodeFiles(setting(config, "rllm.episode_logging.episode_log_dir"))]
      : []),
  ];
}

function wandbRun({ config, dir, io }: { config: Tree; dir: string; io: RunIo }): WandbOptions {
  return {
    dir,
    env: io.env,
    notify: (message) => io.err(`${message}\n`),
    project: setting(config, "rllm.trainer.project_name"),
    name: setting(config, "rllm.trainer.experiment_name"),
    config: maskTree(config),
    warmupSteps: setting(config, "warmup.steps") ?? 0,
  };
}

/** Warnings are for people even where the progress is not. */
function warningsOnly(io: RunIo): Logger {
  return { name: "console", log() {}, warn: (message) => io.err(`warning: ${message}\n`) };
}
