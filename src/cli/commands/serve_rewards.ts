/** `grpu serve rewards`: the rewards and agents of a run for the workers of a cluster that somebody else started. */

import type { Service, ServiceStats } from "../../cluster/rewards/service.ts";
import { ConfigError } from "../../leaves/errors.ts";
import type { Command, Input, Io } from "../command.ts";
import { ALLOW_UNSUPPORTED, IMPORT, importsOf } from "../options.ts";
import { EXIT_OK } from "../process/exit.ts";
import { integerOption } from "./model_options.ts";

export const serveRewardsCommand: Command = {
  path: "serve rewards",
  summary: "serve a run's rewards and agents to the workers of a cluster",
  args: "[config.yaml] [key=value ...]",
  options: [
    { flag: "--port", value: "N", describe: "port; 0 takes any free one", default: "8300" },
    { flag: "--host", value: "HOST", describe: "address to listen on", default: "127.0.0.1" },
    {
      flag: "--token-env",
      value: "NAME",
      describe: "environment variable with the token that every request must send",
      default: "GRPU_TOKEN",
    },
    {
      flag: "--tokenizer",
      value: "DIR",
      describe: "folder of the trained model's tokenizer.json (default: that of model.name)",
    },
    { flag: "--run", value: "NAME", describe: "name of the run in /health (default: the experiment's)" },
    { flag: "--rollouts", value: "N", describe: "rollouts that may be open at once", default: "16384" },
    { flag: "--finish-seconds", value: "N", describe: "Ctrl-C waits so long for running judgements", default: "30" },
    IMPORT,
    ALLOW_UNSUPPORTED,
  ],
  examples: [
    "GRPU_TOKEN=$(openssl rand -hex 32) grpu serve rewards run.yaml",
    "grpu serve rewards run.yaml --import reward.ts --host 0.0.0.0 --tokenizer ./Qwen3-0.6B",
  ],
  notes:
    "docs/service.md has the protocol. /metrics serves Prometheus; it takes the token, too. `grpu train rllm/backend=verl` serves by itself: this command is for a service in a place of its own.",
  run: serveRewards,
};

async function serveRewards(input: Input, io: Io): Promise<number> {
  const { options } = input;
  const token = tokenIn(String(options.tokenEnv), io);
  const { openSession } = await import("../../train/run/session.ts");
  const { servedRun } = await import("../../train/run/serve/served_run.ts");
  const { openService } = await import("../../cluster/rewards/service.ts");
  const session = await openSession(
    { args: input.args, imports: importsOf(input), allowUnsupported: options.allowUnsupported === true },
    io,
  );
  const { setting } = await import("../../train/config/schema.ts");
  const run = await servedRun(session, { tokenizer: options.tokenizer as string | undefined });
  const gateway = await session.gateway?.open((line) => io.err(`gateway: ${line}\n`));
  try {
    const service = await openService({
      ...run,
      token,
      run: String(options.run ?? setting(session.config, "rllm.trainer.experiment_name")),
      host: String(options.host),
      port: integerOption(options.port, { flag: "--port", least: 0, most: 65_535 }),
      limits: { rollouts: integerOption(options.rollouts, { flag: "--rollouts", least: 1 }) },
      warn: (message) => io.err(`warning: ${message}\n`),
    });
    const { train, val } = session.tasks;
    const what = run.isSingleTurn ? "rewards" : "rollouts";
    io.err(`serving the ${what} of ${train.length} training and ${val.length} held-out tasks on ${service.url}\n`);
    if (gateway !== undefined) io.err(`agents call the gateway ${gateway}\n`);
    await servedUntilStopped(service, { input, io });
    return EXIT_OK;
  } finally {
    await session.gateway?.close();
  }
}

/** @throws {ConfigError} where the variable is empty */
function tokenIn(name: string, { env }: Io): string {
  const token = env[name];
  if (token) return token;
  throw new ConfigError(
    `Cannot serve without a token: the environment variable ${name} is empty. Set it, for instance to the output of openssl rand -hex 32, here and for the cluster's workers.`,
  );
}

async function servedUntilStopped(service: Service, { input, io }: { input: Input; io: Io }): Promise<void> {
  const graceMs = 1000 * integerOption(input.options.finishSeconds, { flag: "--finish-seconds", least: 0, most: 3600 });
  if (!io.signal.aborted)
    await new Promise<void>((resolve) => io.signal.addEventListener("abort", () => resolve(), { once: true }));
  const closed = service.close({ graceMs });
  io.finishing?.(closed);
  await closed;
  io.err(`${summary(service.stats())}\n`);
}

function summary({ judgements, rollouts, failures }: ServiceStats): string {
  const { done, failed, given_up, silent, empty } = rollouts;
  return [
    `${judgements.total} judgements, ${judgements.failed} failed; ${rollouts.started} rollouts: ${done} done, ${failed} failed, ${empty} empty, ${given_up + silent} given up`,
    ...failures.slice(0, 5).map(({ count, first }) => `  ${count} x ${first.where}: ${first.message.split("\n")[0]}`),
  ].join("\n");
}
