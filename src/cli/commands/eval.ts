/** `grpu eval`: validation alone, of a configuration's model or of a checkpoint. */
import { existsSync } from "node:fs";
import { getAt } from "../../config/yaml/tree.ts";
import { ConfigError } from "../../errors.ts";
import type { Logger, LogRecord } from "../../log/logger.ts";
import { Progress } from "../../log/progress.ts";
import type { Command, Input, Io } from "../command.ts";
import { ALLOW_UNSUPPORTED, DEVICE, deviceOverride, IMPORT, importsOf } from "../options.ts";
import type { Recording } from "../run/recorded_rollout.ts";

export const evalCommand: Command = {
  path: "eval",
  summary: "score a model on a task's held-out data",
  args: "[config.yaml] [key=value ...]",
  options: [
    {
      flag: "--checkpoint",
      value: "DIR",
      describe: "a checkpoint, a run (its latest step), an adapter or a model; default: the model as configured",
    },
    { flag: "--n", value: "N", describe: "attempts at each task (pass@1 and pass@N)" },
    IMPORT,
    DEVICE,
    ALLOW_UNSUPPORTED,
    { flag: "--json", describe: "print the scores as one JSON object" },
  ],
  examples: [
    "grpu eval examples/arithmetic/run.yaml --checkpoint checkpoints/grpu/arithmetic/global_step_60",
    "grpu eval examples/arithmetic/run.yaml --checkpoint DIR --n 8 rllm.rollout.val.temperature=0.6 --json",
  ],
  notes: "Ctrl-C prints the scores of the finished attempts, marked as partial (status 130).",
  run: evaluate,
};

async function evaluate(input: Input, io: Io): Promise<void> {
  const { openSession } = await import("../run/session.ts");
  const { openBackend } = await import("../run/backend.ts");
  const { checkpointDir } = await import("../run/checkpoint_dir.ts");
  const { settingsFromConfig } = await import("../../loop/settings_config.ts");
  const { train } = await import("../../loop/train.ts");
  const { checkPrompts } = await import("../run/prompts.ts");
  const { offerSampling } = await import("../run/recommended_sampling.ts");
  const { gatewaySettings } = await import("../run/gateway_settings.ts");
  const { openRecording } = await import("../run/recorded_rollout.ts");
  const { options } = input;
  const attempts = options.n === undefined ? [] : [`rllm.rollout.n_val=${options.n}`];
  const overrides = [...deviceOverride(input), ...attempts, "rllm.trainer.val_only=true"];
  const session = await openSession(
    {
      args: input.args,
      imports: importsOf(input),
      overrides,
      allowUnsupported: input.options.allowUnsupported === true,
    },
    io,
  );
  const settings = settingsFromConfig(session.config);
  const named = options.checkpoint === undefined ? undefined : String(options.checkpoint);
  const checkpoint = named === undefined ? undefined : await checkpointDir(named, io);
  const { backend, description } = await openBackend(session, { io, checkpoint, isTrained: false });
  let recording: Recording | undefined;
  try {
    io.err(`${session.tasks.val.length} tasks on ${description}\n`);
    if (checkpoint !== undefined) await backend.load(checkpoint);
    checkPrompts(session, { backend, io });
    const folder = checkpoint ?? getAt(session.config, "model.name");
    if (typeof folder === "string" && existsSync(folder)) await offerSampling(session, { folder, io });
    const tell = (line: string) => io.err(`gateway: ${line}\n`);
    await session.gateway?.open(tell);
    recording = await openRecording(gatewaySettings(session.config), tell);
    const total = session.tasks.val.length * settings.rollout.n_val;
    const logger = scoreLogger(io, { isJson: options.json === true, total });
    const rollout = recording?.wrap(session.rollout) ?? session.rollout;
    await train({ ...session, rollout, backend, settings, loggers: [logger], signal: io.signal });
    io.signal.throwIfAborted();
  } finally {
    await session.gateway?.close();
    await recording?.close();
    backend.close();
  }
}

/** Shows how far the attempts are, and prints the scores: partial ones when they are stopped. */
function scoreLogger(io: Io, { isJson, total }: { isJson: boolean; total: number }): Logger {
  const progress = new Progress(io, "eval", { unit: "attempts" });
  const print = (metrics: LogRecord["metrics"], mark: object) => {
    progress.finish();
    if (isJson) return io.out(`${JSON.stringify({ ...mark, ...metrics })}\n`);
    for (const [name, value] of Object.entries(metrics)) io.out(`${name.padEnd(40)} ${value.toFixed(4)}\n`);
  };
  return {
    progress: (done, of) => progress.update(done, of),
    log: ({ metrics }) => {
      print(metrics, {});
      if (metrics["val/rollouts_failed"] === total) throw new ConfigError(ALL_FAILED, { kind: "code" });
    },
    partial: ({ metrics, episodes = [] }) => {
      const of = `${episodes.length} of ${total} attempts`;
      print(metrics, { partial: true, attempts: episodes.length, total });
      io.err(`stopped: these scores cover ${of}\n`);
    },
    warn: (message) => {
      progress.finish();
      io.err(`warning: ${message}\n`);
    },
  };
}

const ALL_FAILED = "Cannot score the model: every rollout failed. Correct the error shown above.";
