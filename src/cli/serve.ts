/** `grpu serve tinker`: a Tinker-compatible server over the local engine. */
import { ConfigError } from "../errors.ts";
import { isLoopback } from "../http/origin.ts";
import type { Command, Input, Io, Option } from "./command.ts";
import { HTTP_OPTIONS, httpSettings } from "./http_options.ts";
import { BASE, integer, MODEL } from "./model_options.ts";
import { DEVICE } from "./options.ts";

const OPTIONS: readonly Option[] = [
  {
    ...MODEL,
    describe: "folder of the base model, in Hugging Face's layout, or of an adapter to merge into its own",
  },
  BASE,
  { flag: "--port", value: "N", describe: "0 takes any free one", default: "8000" },
  { flag: "--host", value: "HOST", describe: "address to listen on", default: "127.0.0.1" },
  {
    flag: "--api-key",
    value: "KEY",
    describe: "what clients must send; $GRPU_API_KEY if absent; needed beyond this machine",
  },
  {
    flag: "--checkpoints",
    value: "DIR",
    describe: "where checkpoints are kept",
    default: "checkpoints/tinker",
  },
  {
    flag: "--model-name",
    value: "NAME",
    describe: "a further name of the base model, as Qwen/Qwen3-0.6B; may repeat",
    repeat: true,
  },
  {
    flag: "--session-minutes",
    value: "N",
    describe: "a session ends after this long without a sign of life",
    default: "30",
  },
  {
    flag: "--memory-gib",
    value: "N",
    describe: "device memory that may be used",
  },
  ...HTTP_OPTIONS,
  DEVICE,
];

export const serveCommands: readonly Command[] = [
  {
    path: "serve tinker",
    summary: "a Tinker-compatible server: its Python SDK trains here, unchanged",
    options: OPTIONS,
    examples: [
      "grpu serve tinker --model ./stories260k",
      "grpu serve tinker --model ./Qwen3-0.6B --model-name Qwen/Qwen3-0.6B --port 8080",
      "grpu serve tinker --model ./stories260k --host 0.0.0.0 --api-key tml-secret",
    ],
    notes: [
      "Clients set TINKER_BASE_URL to the address printed. A page for people is at the address itself, figures for",
      "Prometheus at /metrics. Ctrl-C finishes the work in hand, and keeps unsaved training as checkpoints.",
    ].join("\n"),
    run: serveTinker,
  },
];

/** What the SDK takes for a key: it refuses others before it sends them. */
const ANY_KEY = "tml-local";

async function serveTinker({ options }: Input, io: Io): Promise<void> {
  const host = String(options.host);
  const apiKey = (options.apiKey as string | undefined) ?? io.env.GRPU_API_KEY;
  checkKey(host, apiKey);
  const port = integer(options.port, { flag: "--port", least: 0, most: 65_535 });
  const minutes = integer(options.sessionMinutes, { flag: "--session-minutes", least: 1 });
  const { createApp } = await import("../serve/app.ts");
  const { listen } = await import("../http/listen.ts");
  const settings = httpSettings(options);
  const service = await openService(options, { io, sessionMs: minutes * 60_000 });
  try {
    const app = createApp({ ...settings, service, apiKey });
    const listening = await listen(app, { host, port });
    io.err(
      greeting(listening.url, { apiKey, device: service.engine.device, root: service.checkpoints.root }),
    );
    await aborted(io.signal);
    io.err("finishing the work in hand; once more Ctrl-C to leave it\n");
    await service.stop();
    await listening.close();
  } finally {
    service.close();
  }
}

function checkKey(host: string, apiKey: string | undefined): void {
  if (!isLoopback(host) && !apiKey)
    throw new ConfigError(
      `Cannot serve beyond this machine without a key: give --api-key, or leave --host at 127.0.0.1: ${host}`,
    );
  if (apiKey !== undefined && !apiKey.startsWith("tml-"))
    throw new ConfigError("Cannot use the --api-key as Tinker's SDK takes keys that begin with tml- alone.");
}

async function openService(options: Input["options"], { io, sessionMs }: { io: Io; sessionMs: number }) {
  const { realpath } = await import("node:fs/promises");
  const { resolve } = await import("node:path");
  const { LocalEngine } = await import("../backend/served.ts");
  const { openDevice } = await import("../compute/open.ts");
  const { Checkpoints } = await import("../serve/checkpoints.ts");
  const { TinkerService } = await import("../serve/service.ts");
  const log = (line: string) => io.err(`${line}\n`);
  const device = await openDevice({
    device: (options.device as "auto" | undefined) ?? "auto",
    memoryBudgetBytes: memoryBudget(options.memoryGib),
  });
  try {
    const folder = resolve(String(options.model));
    const engine = await LocalEngine.open({ device, folder, base: options.base as string | undefined });
    const checkpoints = await Checkpoints.open(resolve(String(options.checkpoints)), { log });
    const names = (options.modelName as readonly string[] | undefined) ?? [];
    const modelNames = [...new Set([...names, folder, await realpath(folder), String(options.model)])];
    const limits = { sessionMs, policyBytes: device.memory.budget / 8 };
    return new TinkerService({ engine, checkpoints, modelNames, limits, log });
  } catch (error) {
    device.destroy();
    throw error;
  }
}

function memoryBudget(gib: Input["options"][string]): number | undefined {
  return gib === undefined ? undefined : integer(gib, { flag: "--memory-gib", least: 1 }) * 2 ** 30;
}

function greeting(url: string, of: { apiKey?: string; device: string; root: string }): string {
  return [
    `${of.device}`,
    `listening on ${url}, checkpoints in ${of.root}`,
    "",
    `  export TINKER_BASE_URL=${url}`,
    `  export TINKER_API_KEY=${of.apiKey ?? ANY_KEY}`,
    "",
    "",
  ].join("\n");
}

function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
}
