/** `grpu eval`: validation alone, of a configuration's model or of a checkpoint. */
import type { Logger } from "../log/logger.ts";
import type { Command, Input, Io } from "./command.ts";
import { ALLOW_UNSUPPORTED, DEVICE, deviceOverride, IMPORT, importsOf } from "./options.ts";

export const evalCommand: Command = {
  path: "eval",
  summary: "score a model on a task's held-out rows",
  args: "[config.yaml] [key=value ...]",
  options: [
    {
      flag: "--checkpoint",
      value: "DIR",
      describe:
        "a checkpoint, a run (its latest step), an adapter or a model; default: the model as configured",
    },
    { flag: "--n", value: "N", describe: "attempts at each task (pass@1 and pass@N)" },
    IMPORT,
    DEVICE,
    ALLOW_UNSUPPORTED,
    { flag: "--json", describe: "print the scores as one JSON object" },
  ],
  examples: [
    "grpu eval config/run/arithmetic.yaml --checkpoint checkpoints/grpu/arithmetic/global_step_60",
    "grpu eval config/run/arithmetic.yaml --checkpoint DIR --n 8 rllm.rollout.val.temperature=0.6 --json",
  ],
  run: evaluate,
};

async function evaluate(input: Input, io: Io): Promise<void> {
  const { openSession } = await import("./session.ts");
  const { openBackend } = await import("./backend.ts");
  const { checkpointDir } = await import("./checkpoint_dir.ts");
  const { settingsFromConfig } = await import("../loop/settings_config.ts");
  const { train } = await import("../loop/train.ts");
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
  try {
    io.err(`${session.tasks.val.length} tasks on ${description}\n`);
    if (checkpoint !== undefined) await backend.load(checkpoint);
    const scores: Record<string, number> = {};
    const keep: Logger = { log: ({ metrics }) => void Object.assign(scores, metrics) };
    await train({ ...session, backend, settings, loggers: [keep], signal: io.signal });
    io.signal.throwIfAborted();
    if (options.json) io.out(`${JSON.stringify(scores)}\n`);
    else
      for (const [name, value] of Object.entries(scores)) io.out(`${name.padEnd(40)} ${value.toFixed(4)}\n`);
  } finally {
    backend.close();
  }
}
