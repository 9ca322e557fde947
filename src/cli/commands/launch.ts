/** `grpu launch local`: a Ray cluster of this machine. */

import type { Command, Input, Io } from "../command.ts";
import { EXIT_FAILED, EXIT_OK, Fault } from "../process/exit.ts";
import type { RayHead } from "../process/ray_head.ts";
import { integerOption } from "./model_options.ts";

export const launchCommands: readonly Command[] = [
  {
    path: "launch local",
    summary: "start a Ray cluster of this machine alone, for runs on verl",
    options: [
      { flag: "--python", value: "PATH", describe: "the Python that has Ray", default: "python3" },
      { flag: "--num-cpus", value: "N", describe: "CPUs that Ray may give away; default all" },
      { flag: "--num-gpus", value: "N", describe: "GPUs that Ray may give away; default all" },
      { flag: "--port", value: "N", describe: "port of the dashboard, which takes the jobs", default: "8265" },
    ],
    examples: ["grpu launch local", "grpu launch local --python ~/verl/bin/python --num-gpus 1"],
    notes:
      "Listens on 127.0.0.1 alone and asks for a token, because jobs run any program as this user: the one in RAY_AUTH_TOKEN, or a new one.\n" +
      "Ctrl-C ends Ray and the jobs that run in it.",
    run: launchLocal,
  },
];

async function launchLocal({ options }: Input, io: Io): Promise<number> {
  const count = (flag: string, value: Input["options"][string], least: number) =>
    value === undefined ? undefined : integerOption(value, { flag, least });
  const { startRayHead } = await import("../process/ray_head.ts");
  const head = await startRayHead({
    python: String(options.python),
    port: integerOption(options.port, { flag: "--port", least: 1, most: 65_535 }),
    numCpus: count("--num-cpus", options.numCpus, 1),
    numGpus: count("--num-gpus", options.numGpus, 0),
    token: io.env.RAY_AUTH_TOKEN || undefined,
    env: io.env,
    signal: io.signal,
  });
  io.err(startupText(head));
  const words = await Promise.race([head.ended, aborted(io.signal)]);
  if (words !== undefined) io.err(`grpu: Cannot go on: Ray has ended by itself. Its last words:\n${words}\n`);
  else io.err("ending Ray and its jobs\n");
  const stopped = head.stop();
  io.finishing?.(stopped);
  await stopped;
  return words !== undefined || io.signal.reason instanceof Fault ? EXIT_FAILED : EXIT_OK;
}

function startupText({ address, version, tokenFile, logs }: RayHead): string {
  return [
    `Ray ${version} listens on ${address}, its logs are in ${logs}`,
    "",
    `  export RAY_ADDRESS=${address}`,
    `  export RAY_AUTH_TOKEN=$(cat ${tokenFile})`,
    "  grpu jobs list",
    "",
    "Ctrl-C ends it and its jobs.",
    "",
  ].join("\n");
}

function aborted(signal: AbortSignal): Promise<undefined> {
  if (signal.aborted) return Promise.resolve(undefined);
  return new Promise((resolve) => signal.addEventListener("abort", () => resolve(undefined), { once: true }));
}
