#!/usr/bin/env node
/** The command line: which commands there are, and the process that they run in. */
import { readFileSync } from "node:fs";
import { commands as configCommands } from "./cli/config.ts";
import { deviceCommand } from "./cli/device.ts";
import { evalCommand } from "./cli/eval.ts";
import { type Program, runProgram } from "./cli/front.ts";
import { processIo } from "./cli/io.ts";
import { commands as metricsCommands } from "./cli/metrics.ts";
import { modelCommands } from "./cli/model.ts";
import { sampleCommand } from "./cli/sample.ts";
import { trainCommand } from "./cli/train.ts";

const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as {
  version: string;
};

const PROGRAM: Program = {
  name: "grpu",
  version,
  summary: "RL post-training for language models in TypeScript, on WebGPU",
  commands: [
    trainCommand,
    evalCommand,
    sampleCommand,
    deviceCommand,
    ...modelCommands,
    ...configCommands,
    ...metricsCommands,
  ],
  groups: {
    config: "show, check, explain and convert configurations",
    model: "score and continue tokens with a model",
    metrics: "what the metrics mean",
  },
  examples: [
    "grpu train config/run/arithmetic.yaml",
    "grpu config explain rllm.rollout.n",
    "grpu train --help",
  ],
};

process.exitCode = await runProgram(PROGRAM, process.argv.slice(2), processIo());
