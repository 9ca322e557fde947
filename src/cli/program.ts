/** Every command there is. */

import { packageVersion } from "../train/run/files.ts";
import { chatCommand } from "./commands/chat.ts";
import { computeCommands } from "./commands/compute.ts";
import { configCommands } from "./commands/config.ts";
import { demoCommand } from "./commands/demo.ts";
import { deviceCommand } from "./commands/device.ts";
import { dpoCommand } from "./commands/dpo.ts";
import { evalCommand } from "./commands/eval.ts";
import { exportCommand } from "./commands/export.ts";
import { hubCommands } from "./commands/hub.ts";
import { importCommand } from "./commands/import_model.ts";
import { jobsCommands } from "./commands/jobs.ts";
import { launchCommands } from "./commands/launch.ts";
import { metricsCommands } from "./commands/metrics.ts";
import { modelCommands } from "./commands/model.ts";
import { modelShowCommand } from "./commands/model_show.ts";
import { planCommand } from "./commands/plan.ts";
import { reportCommand } from "./commands/report.ts";
import { rewardModelCommand } from "./commands/reward_model.ts";
import { sampleCommand } from "./commands/sample.ts";
import { serveCommands } from "./commands/serve.ts";
import { serveGatewayCommands } from "./commands/serve_gateway.ts";
import { serveRewardsCommand } from "./commands/serve_rewards.ts";
import { sftCommand } from "./commands/sft.ts";
import { tracesCommands } from "./commands/traces.ts";
import { trainCommand } from "./commands/train.ts";
import { viewCommand } from "./commands/view.ts";
import type { CommandProgram } from "./front.ts";

export const PROGRAM: CommandProgram = {
  name: "grpu",
  version: packageVersion(),
  summary: "RL post-training for language models in TypeScript, on WebGPU",
  commands: [
    trainCommand,
    sftCommand,
    dpoCommand,
    rewardModelCommand,
    planCommand,
    evalCommand,
    reportCommand,
    viewCommand,
    demoCommand,
    sampleCommand,
    chatCommand,
    exportCommand,
    importCommand,
    ...hubCommands,
    deviceCommand,
    modelShowCommand,
    ...modelCommands,
    ...computeCommands,
    ...configCommands,
    ...metricsCommands,
    ...tracesCommands,
    ...launchCommands,
    ...jobsCommands,
    ...serveGatewayCommands,
    ...serveCommands,
    serveRewardsCommand,
  ],
  groups: {
    model: "show a model, score and continue tokens with it",
    compute: "advantages, losses and corrections of recorded rollouts",
    config: "show, check, explain and convert configurations",
    traces: "list, show, export, import, reward and delete what agents' calls left",
    metrics: "convert metric logs between verl and Trinity-RFT",
    launch: "start a Ray cluster",
    jobs: "list, show, follow, stop and delete the jobs of a Ray cluster",
    serve: "let other programs train and sample here",
  },
  examples: ["grpu train examples/arithmetic/run.yaml", "grpu config explain rllm.rollout.n", "grpu train --help"],
};
