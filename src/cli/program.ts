/** Every command there is. */
import { readFileSync } from "node:fs";
import { commands as computeCommands } from "./compute.ts";
import { commands as configCommands } from "./config.ts";
import { deviceCommand } from "./device.ts";
import { evalCommand } from "./eval.ts";
import type { Program } from "./front.ts";
import { commands as metricsCommands } from "./metrics.ts";
import { modelCommands } from "./model.ts";
import { reportCommand } from "./report.ts";
import { sampleCommand } from "./sample.ts";
import { serveCommands } from "./serve.ts";
import { trainCommand } from "./train.ts";
import { viewCommand } from "./view.ts";

const manifest = readFileSync(new URL("../../package.json", import.meta.url), "utf8");

export const PROGRAM: Program = {
  name: "grpu",
  version: (JSON.parse(manifest) as { version: string }).version,
  summary: "RL post-training for language models in TypeScript, on WebGPU",
  commands: [
    trainCommand,
    evalCommand,
    reportCommand,
    viewCommand,
    sampleCommand,
    deviceCommand,
    ...modelCommands,
    ...computeCommands,
    ...configCommands,
    ...metricsCommands,
    ...serveCommands,
  ],
  groups: {
    model: "score and continue tokens with a model",
    compute: "advantages, losses and corrections of recorded rollouts",
    config: "show, check, explain and convert configurations",
    metrics: "what the metrics mean",
    serve: "servers for other programs to train and sample with",
  },
  examples: [
    "grpu train config/run/arithmetic.yaml",
    "grpu config explain rllm.rollout.n",
    "grpu train --help",
  ],
};
