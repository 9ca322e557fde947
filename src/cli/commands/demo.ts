/** `grpu demo`: the page that trains a model in a browser. */
import type { Command, Input, Io } from "../command.ts";
import { EXIT_OK } from "../process/exit.ts";
import { ALLOW_HOST, allowedHosts } from "./http_options.ts";
import { integerOption } from "./model_options.ts";

export const demoCommand: Command = {
  path: "demo",
  summary: "serve the page that trains a model in the browser",
  options: [
    { flag: "--port", value: "N", describe: "port; 0 takes any free one", default: "7008" },
    { flag: "--host", value: "HOST", describe: "address to listen on", default: "127.0.0.1" },
    ALLOW_HOST,
  ],
  examples: ["grpu demo", "grpu demo --port 8080"],
  notes:
    "The browser computes, on its own GPU; this process only hands out the page. Ctrl-C stops it.\n" +
    "Browsers have WebGPU on localhost and over https. Without it the page trains on the CPU, slowly.",
  run: demo,
};

async function demo({ options }: Input, io: Io): Promise<number> {
  const { serveDemo } = await import("../process/demo_server.ts");
  const server = await serveDemo({
    host: String(options.host),
    port: integerOption(options.port, { flag: "--port", least: 0, most: 65_535 }),
    allowedHosts: allowedHosts(options),
  });
  io.out(`${server.url}/\n`);
  io.err("Open it in a browser with WebGPU. Ctrl-C stops the server.\n");
  await new Promise<void>((resolve) => {
    if (io.signal.aborted) resolve();
    io.signal.addEventListener("abort", () => resolve());
  });
  await server.close();
  return EXIT_OK;
}
