/** Opens models to serve: a base on a device, its adapters by name, and the newest checkpoint of a run. */
import { statSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { type OpenDeviceOptions, openDevice } from "../../../engine/compute/open.ts";
import { folderKind } from "../../../engine/model/files/open_folder.ts";
import type { TextTokenizer } from "../../../engine/model/files/tokenizer.ts";
import { openBase, openModel } from "../../../engine/model/open_model.ts";
import { ConfigError, UnsupportedError } from "../../../leaves/errors.ts";
import { type RequestDefaults, Serving, type WeightsSource } from "../../../serve/openai/serving.ts";
import { checkpointStep } from "../../backend/local/checkpoint.ts";
import { LocalEngine, type LocalEngineOptions } from "../../backend/local/engine.ts";
import { FolderCheckpoints } from "../../log/checkpoint/folder_checkpoints.ts";
import { isRunFolder } from "../../log/page/run_folder.ts";
import { withTemplate } from "../model/chat_template.ts";
import { generationConfigOf } from "../model/recommended_sampling.ts";
import { followRun, type RunFollower } from "./follow_run.ts";
import { openTextThread } from "./text_thread.ts";

/** Models that {@link openServing} opens. */
export interface OpenServingOptions {
  /** Folder of a model or an adapter, or of a run, whose newest checkpoint is served and followed. */
  readonly model: string;
  /** Names of the model in requests. Default: the folder's. */
  readonly names?: readonly string[] | undefined;
  /** Folders of adapters on the same base, or of runs that train one, by name. */
  readonly adapters?: Readonly<Record<string, string>> | undefined;
  /** Folder of the base, for an adapter that does not name it. */
  readonly base?: string | undefined;
  /** Jinja file in place of the model's chat template, or `plain`. */
  readonly template?: string | undefined;
  /** Values for what a request leaves open; before those that the model's authors recommend. */
  readonly sampling?: Partial<RequestDefaults> | undefined;
  /** How tokens are guessed ahead. Default: not at all. */
  readonly speculative?: LocalEngineOptions["speculative"];
  readonly device?: OpenDeviceOptions | undefined;
  /** How often a run is looked at for a newer checkpoint, ms. Default 2000; 0: only by `reload`. */
  readonly followMs?: number | undefined;
  /** Takes one line for the operator. */
  readonly log?: ((line: string) => void) | undefined;
}

/** Models that are open, and the runs that they follow. */
export interface OpenedServing {
  readonly serving: Serving;
  /** Serves the newest checkpoints of the runs now. @throws for one that cannot be used; the others are served */
  reload?(): Promise<void>;
  /** Finishes running replies for at most so long, stops following, and frees the device. */
  close(options?: { readonly graceMs?: number }): Promise<void>;
}

/** Tokens of a reply whose request sets no limit: a sequence holds memory for all that it may draw. */
const DEFAULT_MAX_TOKENS = 1024;

const DEFAULTS: RequestDefaults = { max_tokens: DEFAULT_MAX_TOKENS, temperature: 1, top_p: 1, top_k: 0 };

/** A name in requests, and the folder that it stands for. */
interface Named {
  readonly name: string;
  readonly dir: string;
  /** Set for a run: `dir` is its newest checkpoint. */
  readonly run?: string | undefined;
  readonly kind: "model" | "adapter";
}

/**
 * Opens a model and its adapters for many callers.
 * @throws {ConfigError} for a folder that holds no model, an adapter of another base, or a name that is given twice;
 * {UnsupportedError} for a model without a tokenizer
 */
export async function openServing(options: OpenServingOptions): Promise<OpenedServing> {
  const { log = () => {}, followMs = 2000 } = options;
  const { models, aliases } = await namedModels(options);
  const main = models[0]!;
  const place = await baseOf(main, options.base);
  const device = await openDevice(options.device ?? {});
  try {
    const warn = (line: string) => log(`warning: ${line}`);
    const { speculative } = options;
    const engine = await LocalEngine.open({ device, folder: place.base, speculative, warn });
    const tokenizer = withTemplate(place.tokenizer, options.template);
    const serving = new Serving({
      engine,
      tokenizer,
      thread: openTextThread(tokenizer),
      models: await sources(models, options),
      aliases: Object.fromEntries(aliases.map((alias) => [alias, main.name])),
      defaults: { ...DEFAULTS, ...(await generationConfigOf(main.dir, options.base)).sampling, ...options.sampling },
      log,
    });
    await serving.open();
    const followers = follow(models, { serving, log, everyMs: followMs });
    return {
      serving,
      reload: () => reloadAll(followers),
      close: (how) => closeAll(serving, { followers, graceMs: how?.graceMs ?? 0 }),
    };
  } catch (error) {
    device.destroy();
    throw error;
  }
}

async function reloadAll(followers: readonly RunFollower[]): Promise<void> {
  const looks = await Promise.allSettled(followers.map((follower) => follower.reload()));
  const failure = looks.find(({ status }) => status === "rejected");
  if (failure) throw (failure as PromiseRejectedResult).reason;
}

async function closeAll(
  serving: Serving,
  { followers, graceMs }: { followers: readonly RunFollower[]; graceMs: number },
): Promise<void> {
  for (const follower of followers) await follower.stop();
  await serving.stop({ graceMs });
  serving.close();
}

/** The models, the one that is named first before its adapters, and its further names. */
async function namedModels({
  model,
  names,
  adapters = {},
}: OpenServingOptions): Promise<{ models: Named[]; aliases: string[] }> {
  const main = await named(names?.[0] ?? basename(resolve(model)), model);
  const rest = await Promise.all(Object.entries(adapters).map(([name, dir]) => named(name, dir)));
  for (const { name, dir, kind } of rest)
    if (kind === "model")
      throw new ConfigError(
        `Cannot serve ${name} as an adapter: the folder holds a whole model (${dir}). Serve it by itself with --model.`,
      );
  const aliases = (names ?? []).slice(1);
  const servedNames = [main.name, ...aliases, ...rest.map(({ name }) => name)];
  const twice = servedNames.find((name, i) => servedNames.indexOf(name) < i);
  if (twice !== undefined)
    throw new ConfigError(
      `Cannot serve two models as ${twice}: give each another name (--adapter NAME=DIR, --model-name NAME).`,
    );
  return { models: [main, ...rest], aliases };
}

async function named(name: string, folder: string): Promise<Named> {
  const isModel = ["config.json", "adapter_config.json"].some((file) =>
    statSync(join(folder, file), { throwIfNoEntry: false }),
  );
  if (isModel || !isRunFolder(folder)) return { name, dir: folder, kind: await folderKind(folder) };
  const latest = await new FolderCheckpoints(folder, { resumeMode: "disable" }).latest();
  if (latest === undefined)
    throw new ConfigError("Cannot serve the run: it has no checkpoint yet. Wait for its first, or continue it.", {
      file: folder,
    });
  const dir = join(folder, latest);
  return { name, dir, run: folder, kind: await folderKind(dir) };
}

/** The folder whose weights all models share, and the tokenizer of the model that is named first. */
async function baseOf(
  { dir, kind }: Named,
  baseFolder: string | undefined,
): Promise<{ base: string; tokenizer: TextTokenizer }> {
  const base = kind === "adapter" ? (await openBase(dir, { base: baseFolder })).mark.folder : dir;
  const { tokenizer } = await openModel(dir, { base: baseFolder });
  if (tokenizer) return { base, tokenizer };
  throw new UnsupportedError(`Cannot serve the model: it has no tokenizer.json (${dir}). Add the file.`, {
    part: "serve",
    capability: "tokenizer",
  });
}

async function sources(
  models: readonly Named[],
  { model }: OpenServingOptions,
): Promise<Record<string, WeightsSource>> {
  const entries = models.map(async ({ name, dir, run, kind }) => {
    const weightVersion = await weightVersionOf(dir);
    // The engine's base is the folder itself: it is loaded once.
    return [name, kind === "model" && (run ?? dir) === model ? { weightVersion } : { dir, weightVersion }] as const;
  });
  return Object.fromEntries(await Promise.all(entries));
}

/** Optimiser steps in the weights of a folder: as recorded, or as its name says, or none. */
export async function weightVersionOf(dir: string): Promise<number> {
  return (await checkpointStep(dir)) ?? Number(/^global_step_(\d+)$/.exec(basename(resolve(dir)))?.[1] ?? 0);
}

function follow(
  models: readonly Named[],
  { serving, log, everyMs }: { serving: Serving; log: (line: string) => void; everyMs: number },
): RunFollower[] {
  return models.flatMap(({ name, run, dir }) => {
    if (run === undefined) return [];
    const model = serving.model(name)!;
    const use = async (newest: string) => model.replace({ dir: newest, weightVersion: await weightVersionOf(newest) });
    return [followRun(run, { from: dir, use, name, log, everyMs })];
  });
}
