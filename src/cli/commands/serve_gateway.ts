/** `grpu serve openai` and `grpu serve gateway`: models behind the APIs of OpenAI and Anthropic, without and with a record. */
import { ConfigError } from "../../leaves/errors.ts";
import { isLoopback } from "../../leaves/http/origin.ts";
import type { Command, Input, Io, Option } from "../command.ts";
import { DEVICE, GPU } from "../options.ts";
import { allowedHosts, HTTP_OPTIONS, httpSettings } from "./http_options.ts";
import { BASE, integerOption, MODEL, REPLY_SAMPLING } from "./model_options.ts";
import { RETENTION_OPTIONS } from "./retention_options.ts";
import { KEY_OPTIONS, type KeyKind, keyInFile, randomKey, type ServerKey, serverKey } from "./serve_key.ts";
import { SPECULATIVE } from "./speculative_option.ts";

const CLIENT_KEY: KeyKind = {
  prefix: "sk-grpu-",
  accepts: /^[\x21-\x7e]{8,512}$/,
  rule: "it takes 8 to 512 printable characters without spaces",
  none: "none",
  command: "grpu serve",
};
const ADMIN_KEY: KeyKind = { ...CLIENT_KEY, prefix: "admin-grpu-" };

const MODELS: readonly Option[] = [
  {
    ...MODEL,
    describe: "folder of a model or an adapter, or of a run, whose newest checkpoint is served and followed",
  },
  BASE,
  {
    flag: "--adapter",
    value: "NAME=DIR",
    describe: "an adapter, or a run that trains one, on the same base: requests name it as their model; may repeat",
    repeat: true,
  },
  {
    flag: "--model-name",
    value: "NAME",
    describe: "name of the model in requests (default: the folder's); may repeat",
    repeat: true,
  },
  {
    flag: "--chat-template",
    value: "FILE",
    describe: "Jinja file that replaces the model's template; plain is a simple one for any model",
  },
  ...REPLY_SAMPLING,
];

const SERVER: readonly Option[] = [
  { flag: "--port", value: "N", describe: "port; 0 takes any free one", default: "8000" },
  { flag: "--host", value: "HOST", describe: "address to listen on", default: "127.0.0.1" },
  ...KEY_OPTIONS,
  {
    flag: "--admin-token-file",
    value: "FILE",
    describe:
      "file with the token of the pages, traces and admin routes; created if absent. Default: $GRPU_ADMIN_TOKEN, or a new one where agents send a key",
  },
  { flag: "--concurrency", value: "N", describe: "requests of one key at the same time", default: "1024" },
  { flag: "--per-minute", value: "N", describe: "requests of one key in a minute", default: "60000" },
  { flag: "--finish-seconds", value: "N", describe: "Ctrl-C waits so long for running replies", default: "30" },
  ...HTTP_OPTIONS.map((option) =>
    option.flag === "--body-mib" ? { ...option, describe: "largest body of a request" } : option,
  ),
  DEVICE,
  ...GPU,
  { flag: "--memory-gib", value: "N", describe: "limit of device memory" },
  SPECULATIVE,
];

const NOTES =
  "The address itself shows a page for people; /metrics serves Prometheus. Ctrl-C lets running replies finish.";

export const serveGatewayCommands: readonly Command[] = [
  {
    path: "serve openai",
    summary: "serve a model to clients of OpenAI's and Anthropic's APIs",
    options: [...MODELS, ...SERVER],
    examples: [
      "grpu serve openai --model ./Qwen3-0.6B",
      "grpu serve openai --model checkpoints/grpu/gsm8k --model-name policy",
      "grpu serve openai --model ./Qwen3-0.6B --adapter sql=./sql-lora --adapter maths=checkpoints/grpu/gsm8k",
      "grpu serve openai --model ./Qwen3-0.6B --host 0.0.0.0 --api-key-file key.txt",
    ],
    notes: `Nothing is recorded. ${NOTES}`,
    run: (input, io) => serve(input, { io, isRecording: false }),
  },
  {
    path: "serve gateway",
    summary: "serve a model, or workers that do, and record every call's tokens",
    options: [
      ...MODELS.map((option) => (option.flag === "--model" ? { ...option, required: false } : option)),
      {
        flag: "--worker",
        value: "URL",
        describe: "an inference server to forward to, for instance vLLM at http://host:8000/v1; may repeat",
        repeat: true,
      },
      {
        flag: "--tokenizer",
        value: "DIR",
        describe: "folder of the workers' model: later turns of a session then continue its exact tokens",
      },
      {
        flag: "--store",
        value: "FILE",
        describe: "where calls are recorded; memory keeps none",
        default: "~/.rllm/traces.db",
      },
      ...RETENTION_OPTIONS,
      ...SERVER,
    ],
    examples: [
      "grpu serve gateway --model ./Qwen3-0.6B --store traces.db",
      "grpu serve gateway --worker http://127.0.0.1:8001/v1 --worker http://127.0.0.1:8002/v1",
    ],
    notes: `Agents call /sessions/ID/v1; the routes are those of rLLM's model gateway. ${NOTES}`,
    run: (input, io) => serve(input, { io, isRecording: true }),
  },
];

interface Served {
  readonly io: Io;
  readonly isRecording: boolean;
}

async function serve(input: Input, { io, isRecording }: Served): Promise<number> {
  const { options } = input;
  const { model, store } = options;
  const workers = (options.worker as readonly string[] | undefined) ?? [];
  if (model === undefined && workers.length === 0)
    throw new ConfigError("Cannot serve: no model and no worker is named. Give --model DIR or --worker URL.");
  const key = await serverKey(options, io, CLIENT_KEY);
  checkExposed(options, key);
  const admin = await adminToken(options, { io, key });
  const { openServedGateway } = await import("../../train/run/serve/served_gateway.ts");
  const { retentionOf } = await import("./trace_options.ts");
  const { modelOptions } = await import("./served_options.ts");
  const bounds = httpSettings(options);
  const served = await openServedGateway({
    ...bounds,
    port: integerOption(options.port, { flag: "--port", least: 0, most: 65_535 }),
    store: isRecording ? String(store) : undefined,
    retention: retentionOf(input),
    model: model === undefined ? undefined : modelOptions(options, io),
    workers,
    workerTokenizer:
      typeof options.tokenizer === "string"
        ? { folder: options.tokenizer, template: options.chatTemplate as string | undefined }
        : undefined,
    auth: { apiKeys: key.value === undefined ? [] : [key.value], adminToken: admin.value },
    limits: {
      concurrency: integerOption(options.concurrency, { flag: "--concurrency", least: 1 }),
      perMinute: integerOption(options.perMinute, { flag: "--per-minute", least: 1 }),
      bodyBytes: bounds.bodyBytes,
      allBodyBytes: bounds.bodiesBytes,
    },
    log: (line) => io.err(`${line}\n`),
  });
  const graceMs = 1000 * integerOption(options.finishSeconds, { flag: "--finish-seconds", least: 0, most: 3600 });
  io.err(startupText({ ...served, key, admin, store: isRecording ? String(store) : undefined }));
  await aborted(io.signal);
  const { pending } = served;
  if (pending > 0) io.err(`finishing ${pending} ${pending === 1 ? "reply" : "replies"}; Ctrl-C again ends at once\n`);
  const closed = served.close({ graceMs });
  io.finishing?.(closed);
  await closed;
  return 0;
}

/** @throws {ConfigError} where others come through a proxy and there is no key */
function checkExposed(options: Input["options"], key: ServerKey): void {
  const name = allowedHosts(options).find((each) => !isLoopback(each));
  if (name === undefined || key.value !== undefined) return;
  throw new ConfigError(
    `Cannot serve beyond this machine without a key (--allow-host ${name}). Give --api-key-file, or leave --allow-host out.`,
  );
}

/**
 * Returns the administrator's key. There is always one where agents have keys, as they do beyond this machine: no page
 * and no trace is open to all.
 */
async function adminToken(
  options: Input["options"],
  { io, key }: { readonly io: Io; readonly key: ServerKey },
): Promise<ServerKey> {
  const { adminTokenFile } = options;
  if (typeof adminTokenFile === "string") return keyInFile(adminTokenFile, { io, kind: ADMIN_KEY });
  const { GRPU_ADMIN_TOKEN } = io.env;
  if (GRPU_ADMIN_TOKEN) return { value: GRPU_ADMIN_TOKEN, shown: "$GRPU_ADMIN_TOKEN" };
  if (key.value === undefined) return { value: undefined, shown: "" };
  const value = randomKey(ADMIN_KEY);
  return { value, shown: value };
}

interface StartupDetails {
  readonly url: string;
  readonly models: readonly string[];
  readonly device: string | undefined;
  readonly key: ServerKey;
  readonly admin: ServerKey;
  readonly store: string | undefined;
}

function startupText({ url, models, device, key, admin, store }: StartupDetails): string {
  const what = models.length > 0 ? models.join(", ") : "workers";
  return [
    ...(device === undefined ? [] : [device]),
    `serving ${what} on ${url}; ${store === undefined ? "nothing is recorded" : `calls are recorded in ${store}`}`,
    ...(admin.value === undefined ? [] : [`pages and admin routes take the token ${admin.shown}`]),
    "",
    `  export OPENAI_BASE_URL=${url}/v1`,
    `  export OPENAI_API_KEY=${key.shown}`,
    `  export ANTHROPIC_BASE_URL=${url}`,
    `  export ANTHROPIC_API_KEY=${key.shown}`,
    "",
    "",
  ].join("\n");
}

function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => signal.addEventListener("abort", () => resolve(), { once: true }));
}
