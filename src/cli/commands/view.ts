/** `grpu view`: the page of runs, live, in a browser. */
import { ConfigError } from "../../leaves/errors.ts";
import type { Command, Input, Io } from "../command.ts";
import { EXIT_OK } from "../process/exit.ts";
import { ALLOW_HOST, allowedHosts } from "./http_options.ts";

const DEFAULT_PORT = 7007;

export const viewCommand: Command = {
  path: "view",
  summary: "show runs in the browser, updated while they train",
  args: "<RUN> [RUN ...]",
  options: [
    { flag: "--port", value: "N", describe: `port; 0 takes any free one (default ${DEFAULT_PORT})` },
    { flag: "--host", value: "HOST", describe: "address to listen on", default: "127.0.0.1" },
    ALLOW_HOST,
  ],
  examples: [
    "grpu view checkpoints/grpu/arithmetic",
    "grpu view checkpoints/grpu/arithmetic checkpoints/grpu/arithmetic.1 --port 8080",
  ],
  notes:
    "RUN is the folder of a run; another process may be writing it. Where it records its agents' calls, the page links to them. Ctrl-C stops the server.\n" +
    "Only this machine can reach it, unless --host says otherwise; there is no password.",
  run: view,
};

async function view({ args, options }: Input, io: Io): Promise<number> {
  const { openRuns } = await import("../../train/run/place/runs.ts");
  const { serveRuns } = await import("../../train/log/page/view_server.ts");
  const { openRunTraces } = await import("../../train/run/serve/run_traces.ts");
  const runs = openRuns(args);
  const traces = await openRunTraces(args);
  const server = await serveRuns(runs, {
    traces: traces?.handler,
    host: String(options.host),
    port: portOf(options.port),
    allowedHosts: allowedHosts(options),
  });
  io.out(`${server.url}\n`);
  io.err("Ctrl-C stops the server.\n");
  await new Promise<void>((resolve) => {
    if (io.signal.aborted) resolve();
    io.signal.addEventListener("abort", () => resolve());
  });
  await server.close();
  await traces?.close();
  return EXIT_OK;
}

function portOf(option: Input["options"][string]): number {
  const port = Number(option ?? DEFAULT_PORT);
  if (Number.isInteger(port) && port >= 0 && port <= 65535) return port;
  throw new ConfigError(`Cannot listen: --port takes a whole number from 0 to 65535 (${option}).`);
}
