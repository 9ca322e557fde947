/** Opens the Tinker backend: key and address from the environment, the tokenizer from a folder on this machine. */
import { existsSync, statSync } from "node:fs";
import { join, resolve } from "node:path";
import type { Tokenizer } from "../../../engine/contract/text.ts";
import { openTokenizer } from "../../../engine/model/files/folder.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { TinkerBackend } from "../../backend/tinker/backend.ts";
import type { ModelInfo } from "../../backend/tinker/create_model.ts";
import { trainsStably } from "../../config/rules/stable_reinforce.ts";
import { tinkerSetting } from "../../config/schema.ts";
import { getAt, type Tree } from "../../config/yaml/tree.ts";
import type { RunIo } from "../io.ts";
import { httpFetch } from "../net/http.ts";
import type { ModelSession } from "../session.ts";

const SERVICE = "https://tinker.thinkingmachines.dev/services/tinker-prod";

/** @throws {ConfigError} without a key or a tokenizer; RemoteError for a service that refuses. */
export async function openTinkerBackend(
  { config }: ModelSession,
  io: RunIo,
): Promise<{ backend: TinkerBackend; description: string }> {
  const [baseUrl, ...samplingUrls] = addresses(
    tinkerSetting(config, "tinker_base_url") ?? (io.env.TINKER_BASE_URL || SERVICE),
  );
  const name = tinkerSetting(config, "model.name");
  const backend = await TinkerBackend.open({
    baseUrl: baseUrl!,
    samplingUrls,
    apiKey: keyOf(io),
    fetch: httpFetch,
    sdkVersion: tinkerSetting(config, "tinker_sdk_version"),
    wire: tinkerSetting(config, "tinker_wire"),
    baseModel: name,
    ...(isFolder(name) && { baseModelFolder: resolve(name) }),
    lora: {
      rank: tinkerSetting(config, "model.lora_rank"),
      seed: tinkerSetting(config, "training.seed"),
      train_attn: tinkerSetting(config, "model.train_attn"),
      train_mlp: tinkerSetting(config, "model.train_mlp"),
      train_unembed: tinkerSetting(config, "model.train_unembed"),
    },
    contextLength: tinkerSetting(config, "training.max_length"),
    tokenizer: (info) => findTokenizer(config, info),
    startFrom: tinkerSetting(config, "training.resume_from_tinker_id") ?? undefined,
    recordStabilityInfo: trainsStably((path) => getAt(config, path)),
    samplingClientKind: tinkerSetting(config, "tinker_sampling_client_kind"),
    fuse: tinkerSetting(config, "fuse_forward_backward_and_optim_step"),
    openSignal: io.signal,
    hurry: io.signal,
    notify: (message) => io.err(`tinker: ${message}\n`),
  });
  checkTemperature(backend, Number(getAt(config, "rllm.rollout.train.temperature")));
  const also = samplingUrls.length > 0 ? `, sampling there and at ${samplingUrls.join(", ")}` : "";
  return { backend, description: `${name} at ${baseUrl}${also}` };
}

/** Before anything is sampled. Greedy samples are trained at temperature 1. @throws {ConfigError} */
function checkTemperature(backend: TinkerBackend, temperature: number): void {
  if (temperature === 1 || temperature === 0 || backend.takesTemperature) return;
  backend.close();
  throw new ConfigError(
    `Cannot train on samples at temperature ${temperature}: the service computes log-probs at temperature 1, and announces no other way (get_server_capabilities). Set rllm.rollout.train.temperature=1.`,
    { path: "rllm.rollout.train.temperature" },
  );
}

/** The server that trains, then those that sample with it. */
function addresses(text: string): string[] {
  return text.split(",").map((url) => url.trim().replace(/\/+$/, ""));
}

function keyOf({ env }: RunIo): string {
  if (env.TINKER_API_KEY) return env.TINKER_API_KEY;
  throw new ConfigError(
    "Cannot train on Tinker: TINKER_API_KEY is not set in the environment. Set it; a local server takes any key that begins with tml-.",
  );
}

/** Finds the tokenizer in the folder that is named, that of the base model, or the one that a server on this machine names. */
async function findTokenizer(config: Tree, { name, tokenizerId }: ModelInfo): Promise<Tokenizer> {
  const named = tinkerSetting(config, "model.tokenizer");
  const folders = named
    ? [named]
    : [tinkerSetting(config, "model.name"), tokenizerId, name].filter((name) => name !== undefined);
  const folder = folders.find((candidate) => existsSync(join(candidate, "tokenizer.json")));
  const tokenizer = folder && (await openTokenizer(folder));
  if (tokenizer) return tokenizer;
  throw new ConfigError(
    `Cannot turn text into the tokens of ${name}: there is no tokenizer.json in ${folders.join(", nor in ")}. Download the model's tokenizer files into a folder, and set model.tokenizer to it.`,
    { path: "model.tokenizer" },
  );
}

function isFolder(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isDirectory() ?? false;
}
