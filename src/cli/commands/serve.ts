/** `grpu serve tinker`: a Tinker-compatible server over the local engine. */
import { ConfigError } from "../../leaves/errors.ts";
import type { Listening } from "../../leaves/http/listen.ts";
import type { TinkerService } from "../../serve/tinker/service.ts";
import type { StableMethod } from "../../serve/tinker/stability/stability.ts";
import type { Command, Input, Io, Option } from "../command.ts";
import { ADAPTER, adapterOf, DEVICE, IMPORT, importsOf } from "../options.ts";
import { EXIT_FAILED, EXIT_OK, Fault } from "../process/exit.ts";
import { HTTP_OPTIONS, httpSettings } from "./http_options.ts";
import { BASE, integerOption, MODEL } from "./model_options.ts";
import { KEY_OPTIONS, serverKey, TINKER_KEY } from "./serve_key.ts";

const STABLE_METHODS: readonly StableMethod[] = ["score_centering"];

const OPTIONS: readonly Option[] = [
  {
    ...MODEL,
    describe:
      "folder of the base model in Hugging Face's layout, or of an adapter to merge into its base; may repeat: several are loaded when first asked for",
    repeat: true,
  },
  BASE,
  { flag: "--port", value: "N", describe: "port; 0 takes any free one", default: "8000" },
  { flag: "--host", value: "HOST", describe: "address to listen on", default: "127.0.0.1" },
  ...KEY_OPTIONS,
  {
    flag: "--checkpoints",
    value: "DIR",
    describe: "where checkpoints are kept",
    default: "checkpoints/tinker",
  },
  {
    flag: "--model-name",
    value: "NAME",
    describe:
      "another name of the base model, for instance Qwen/Qwen3-0.6B; may repeat. With several models NAME=DIR, the folder as in --model",
    repeat: true,
  },
  {
    flag: "--session-minutes",
    value: "N",
    describe: "a session ends after this time without a heartbeat",
    default: "30",
  },
  {
    flag: "--peer",
    value: "URL",
    describe:
      "another such server on the same model, with the same key: clients may sample from its saved weights here, and it gets what is recorded with them; may repeat",
    repeat: true,
  },
  {
    flag: "--unload-minutes",
    value: "N",
    describe:
      "a base model without training clients leaves the device after this time without a request (default: 30 with several models, never with one)",
  },
  {
    flag: "--memory-gib",
    value: "N",
    describe: "limit of device memory",
  },
  {
    flag: "--stable-reinforce",
    value: "METHOD",
    describe:
      "method to serve Tinker's loss stable_reinforce by, whose formula is not published: score_centering (default: the loss is refused)",
    choices: STABLE_METHODS,
  },
  {
    ...IMPORT,
    describe: "module to import first: it registers losses (defineLoss) that clients name as loss_fn; may repeat",
  },
  ...HTTP_OPTIONS,
  DEVICE,
  ...ADAPTER,
];

export const serveCommands: readonly Command[] = [
  {
    path: "serve tinker",
    summary: "serve Tinker's protocol: its Python SDK trains here, unchanged",
    options: OPTIONS,
    examples: [
      "grpu serve tinker --model ./stories260k",
      "grpu serve tinker --model ./Qwen3-0.6B --model-name Qwen/Qwen3-0.6B --port 8080",
      "grpu serve tinker --model ./Qwen3-0.6B --model ./Llama-3.2-1B --unload-minutes 10",
      "grpu serve tinker --model ./stories260k --host 0.0.0.0 --api-key-file key.txt",
    ],
    notes:
      "Clients set TINKER_BASE_URL to the printed address. The address itself shows a page for people; /metrics serves Prometheus.\n" +
      "Ctrl-C saves unsaved training as checkpoints and refuses waiting requests.",
    run: serveTinker,
  },
];

async function serveTinker(input: Input, io: Io): Promise<number> {
  const { options } = input;
  const host = String(options.host);
  const port = integerOption(options.port, { flag: "--port", least: 0, most: 65_535 });
  const minutes = integerOption(options.sessionMinutes, { flag: "--session-minutes", least: 1 });
  const settings = httpSettings(options);
  const key = await serverKey(options, io);
  const { importModules } = await import("../../train/run/task/modules.ts");
  await importModules(importsOf(input));
  const { createApp } = await import("../../serve/tinker/app.ts");
  const { listen } = await import("../../leaves/http/listen.ts");
  const service = await openService(options, { io, sessionMs: minutes * 60_000, apiKey: key.value });
  const app = createApp({ ...settings, service, apiKey: key.value });
  return serveUntilStopped(service, io, async () => {
    const listening = await listen(app, { host, port });
    io.err(startupText(listening.url, { key: key.shown, service }));
    return listening;
  });
}

/** Time for answers in flight when the server stops, ms. */
const LAST_ANSWERS_MS = 100;

/** Serves until the signal, then saves unsaved training. @returns the exit status */
export async function serveUntilStopped(
  service: TinkerService,
  io: Io,
  listen: () => Promise<Listening>,
): Promise<number> {
  try {
    const listening = await listen();
    await aborted(io.signal);
    io.err("saving unsaved training; waiting requests are refused\n");
    const stopped = service.stop();
    io.finishing?.(stopped);
    await stopped;
    await new Promise((resolve) => setTimeout(resolve, LAST_ANSWERS_MS));
    await listening.close();
    return io.signal.reason instanceof Fault ? EXIT_FAILED : EXIT_OK;
  } finally {
    service.close();
  }
}

async function openService(
  options: Input["options"],
  { io, sessionMs, apiKey = TINKER_KEY.none }: { io: Io; sessionMs: number; apiKey?: string | undefined },
) {
  const { resolve } = await import("node:path");
  const { openDevice } = await import("../../engine/compute/open.ts");
  const { Checkpoints } = await import("../../serve/tinker/checkpoint/checkpoints.ts");
  const { TinkerService } = await import("../../serve/tinker/service.ts");
  const { openBaseModels } = await import("../../train/run/serve/base_models.ts");
  const log = (line: string) => io.err(`${line}\n`);
  const device = await openDevice({
    device: (options.device as "auto" | undefined) ?? "auto",
    ...adapterOf(options),
    memoryBudgetBytes: memoryBudget(options.memoryGib),
  });
  try {
    const models = await openBaseModels(device, {
      folders: options.model as readonly string[],
      names: (options.modelName as readonly string[] | undefined) ?? [],
      base: options.base as string | undefined,
      warn: (message) => log(`warning: ${message}`),
    });
    const checkpoints = await Checkpoints.open(resolve(String(options.checkpoints)), { log });
    const modelIdleMs = idleMinutes(options.unloadMinutes, models.length) * 60_000;
    const limits = { sessionMs, modelIdleMs, policyBytes: device.memory.budget / 8 };
    const peers = { urls: peersOf(options.peer), apiKey };
    const stableReinforce = options.stableReinforce as StableMethod | undefined;
    return new TinkerService({ models, checkpoints, peers, limits, stableReinforce, log });
  } catch (error) {
    device.destroy();
    throw error;
  }
}

/** @throws ConfigError for an address that is not one of HTTP */
function peersOf(urls: Input["options"][string]): string[] {
  return ((urls as readonly string[] | undefined) ?? []).map((url) => {
    if (/^https?:$/.test(URL.parse(url)?.protocol ?? "")) return url.replace(/\/+$/, "");
    throw new ConfigError(`Cannot take checkpoints from --peer ${url}: it is no address. Give http://HOST:PORT.`);
  });
}

const UNLOAD_MINUTES = 30;

function idleMinutes(minutes: Input["options"][string], models: number): number {
  if (minutes !== undefined) return integerOption(minutes, { flag: "--unload-minutes", least: 1 });
  return models > 1 ? UNLOAD_MINUTES : Number.POSITIVE_INFINITY;
}

function memoryBudget(gib: Input["options"][string]): number | undefined {
  return gib === undefined ? undefined : integerOption(gib, { flag: "--memory-gib", least: 1 }) * 2 ** 30;
}

function startupText(url: string, { key, service }: { key: string; service: TinkerService }): string {
  return [
    `${service.models.all[0]!.engine.device}`,
    `listening on ${url}, checkpoints in ${service.checkpoints.root}`,
    "",
    `  export TINKER_BASE_URL=${url}`,
    `  export TINKER_API_KEY=${key}`,
    "",
    "",
  ].join("\n");
}

function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
}
