/**
 * Turns the command line of a command that trains on rows into its configuration, that of the training run it is, and
 * its rows.
 */
import { isDeepStrictEqual } from "node:util";
import { findPreferenceLoss, preferenceLossNames } from "../../engine/algorithm/preference/losses.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { shuffledIndices } from "../../leaves/random.ts";
import { composeConfig } from "../config/compose.ts";
import { dpoSetting } from "../config/fields/dpo.ts";
import type { FieldTable } from "../config/fields/field.ts";
import { ROW_TABLES, type RowCommand } from "../config/fields/reward_model.ts";
import { actsOn, type RowBackendName, runPathOf, SFT_AS_RUN, sftSetting } from "../config/fields/sft.ts";
import { setting } from "../config/schema.ts";
import { getAt, setAt, type Tree } from "../config/yaml/tree.ts";
import type { Split } from "../data/dataset.ts";
import type { PlacedRow } from "../data/rows.ts";
import { loggers } from "../log/loggers/loggers.ts";
import { composeFiles, type RunSessionOptions } from "./compose_files.ts";
import { packagedText } from "./files.ts";
import type { RunIo } from "./io.ts";
import { readRows } from "./task/datasets.ts";

export interface RowComposition {
  /** Configuration as the user wrote it, with every default. */
  readonly sft: Tree;
  /** The same run as a training run, for everything that the two have in common. */
  readonly config: Tree;
  /** Returns whether a path of {@link config} was given. */
  readonly isGiven: (path: string) => boolean;
  /** Keys of the user's own, which no table of settings has. */
  readonly added: readonly string[];
}

/**
 * Composes the configuration of a command that trains on given rows.
 * @throws {ConfigError} that names the file or key to correct
 */
export async function composeRows(
  options: RunSessionOptions,
  { io, base }: { readonly io: RunIo; readonly base: RowCommand },
): Promise<RowComposition> {
  const registered = () => ({ "trainer.logger": loggers.names(), "dpo.loss_type": preferenceLossNames() });
  const { composed, isGiven: isOwnGiven, added } = await composeFiles(options, { io, base, registered });
  const sft = composed.config;
  const backend = base === "reward-model" ? "local" : sftSetting(sft, "backend");
  const run = { base, backend };
  refuseIdle(sft, run, isOwnGiven);
  if (backend === "tinker") prepareForTinker(sft, isOwnGiven);
  const usual = usualRun(backend, io);
  const ownPath = new Map(Object.keys(ROW_TABLES[base]).map((path) => [runPathOf(path, ROW_TABLES[base]), path]));
  const isGiven = (path: string) => {
    const sftPath = ownPath.get(path);
    return sftPath !== undefined && isOwnGiven(sftPath);
  };
  return { sft, config: asRun(sft, usual.config, run), isGiven, added };
}

/** The defaults of a training run. A Tinker run has none for the two that are named here. */
function usualRun(backend: RowBackendName, io: RunIo) {
  const overrides = [`rllm/backend=${backend}`, "rllm.rollout.n=1", "rllm.rollout.n_val=1"];
  return composeConfig({ overrides, readConfig: packagedText, env: io.env });
}

interface RowRun {
  readonly base: RowCommand;
  readonly backend: RowBackendName;
}

/** LoRA's rank on a service where none is given, as in a training run. */
const SERVICE_RANK = 32;

/** @throws {ConfigError} without a base model, or for training of all weights */
function prepareForTinker(sft: Tree, isGiven: (path: string) => boolean): void {
  if (sftSetting(sft, "model.path") === null)
    throw new ConfigError("Cannot train on Tinker: model.path is not set. Set it to a base model of the service.", {
      path: "model.path",
    });
  if (!isGiven("model.lora_rank")) setAt(sft, "model.lora_rank", SERVICE_RANK);
  if (sftSetting(sft, "model.lora_rank") > 0) return;
  throw new ConfigError(
    "Cannot train all weights on Tinker: the service trains adapters (model.lora_rank=0). Set it to 1 or more.",
    { path: "model.lora_rank" },
  );
}

/** @throws {ConfigError} for a setting that has no effect on the backend and is given another value than its default */
function refuseIdle(sft: Tree, { base, backend }: RowRun, isGiven: (path: string) => boolean): void {
  const fields: FieldTable = ROW_TABLES[base];
  const isDefault = (path: string) => isDeepStrictEqual(getAt(sft, path), fields[path]!.default);
  const idle = Object.keys(fields).find((path) => isGiven(path) && !actsOn(backend, path, fields) && !isDefault(path));
  if (idle === undefined) return;
  const advice = backend === "tinker" ? "Remove it, or set backend=local." : "Remove it, or set backend=tinker.";
  throw new ConfigError(`Cannot set ${idle}: it has no effect with backend=${backend}. ${advice}`, { path: idle });
}

/** The defaults of a training run with the values of a supervised one. */
function asRun(sft: Tree, config: Tree, { base, backend }: RowRun): Tree {
  for (const path of Object.keys(ROW_TABLES[base])) {
    const at = runPathOf(path, ROW_TABLES[base]);
    if (at !== undefined && actsOn(backend, path, ROW_TABLES[base])) setAt(config, at, getAt(sft, path)!);
  }
  // The gradient and its step need no answer in between, which would cost a round trip.
  if (backend === "tinker") setAt(config, "fuse_forward_backward_and_optim_step", true);
  for (const [path, value] of Object.entries(SFT_AS_RUN)) setAt(config, path, value);
  if (base === "dpo") setAt(config, "rllm.algorithm.kl_beta", referenceWeight(sft));
  const [beta1, beta2] = readBetas(sft);
  setAt(config, "training.beta1", beta1);
  setAt(config, "training.beta2", beta2);
  setAt(config, "rllm.trainer.total_batches", sftSetting(sft, "trainer.total_training_steps") ?? -1);
  setAt(config, "rllm.data.seed", sftSetting(sft, "trainer.seed"));
  const longest = sftSetting(sft, "data.max_length");
  for (const path of ["rllm.data.max_response_length", "rllm.rollout.train.max_tokens"]) setAt(config, path, longest);
  return config;
}

/** Above 0 where a reference is kept, as in a training run with a KL term. */
function referenceWeight(config: Tree): number {
  return findPreferenceLoss(dpoSetting(config, "dpo.loss_type")).hasReference ? dpoSetting(config, "dpo.beta") : 0;
}

function readBetas(sft: Tree): [number, number] {
  const betas = sftSetting(sft, "optim.betas");
  const isShare = (value: unknown) => typeof value === "number" && value >= 0 && value < 1;
  if (Array.isArray(betas) && betas.length === 2 && betas.every(isShare)) return betas as [number, number];
  throw new ConfigError(
    `Cannot set optim.betas: it takes two numbers from 0 to below 1, such as [0.9, 0.95] (${JSON.stringify(betas)}).`,
    { path: "optim.betas" },
  );
}

export interface RowExamples<E> {
  readonly train: readonly E[];
  readonly val: readonly E[];
}

/**
 * The examples of `data.train_files` and `data.val_files`, or of a share of the former.
 * @throws {ConfigError} naming the file and line that cannot be used
 */
export async function readExamples<E>(
  { sft, config }: RowComposition,
  examplesOf: (rows: readonly PlacedRow[]) => readonly E[],
): Promise<RowExamples<E>> {
  const names = { train: sftSetting(sft, "data.train_files"), val: sftSetting(sft, "data.val_files") };
  if (names.train === null || names.train.length === 0)
    throw new ConfigError(
      "Cannot train: there are no rows. Set data.train_files to a JSONL or Parquet file, a folder of them, or a data set of an imported module.",
      { path: "data.train_files" },
    );
  const firstRows = sftSetting(sft, "data.train_max_samples");
  if (firstRows === 0)
    throw new ConfigError(
      "Cannot train: data.train_max_samples=0 leaves no row. Set it to a number from 1, or to -1 for all rows.",
      { path: "data.train_max_samples" },
    );
  const share = sftSetting(sft, "data.val_set_size");
  if (share > 0 && names.val !== null)
    throw new ConfigError(
      `Cannot hold out a share of the training rows: there are data.val_files too (data.val_set_size=${share}). Keep one.`,
      { path: "data.val_set_size" },
    );
  const read = async (split: Split, most: number) => {
    const rows = await readRows([names[split] ?? []].flat(), split);
    return examplesOf(most < 0 ? rows : rows.slice(0, most));
  };
  const train = await read("train", firstRows);
  const most = sftSetting(sft, "data.val_max_samples");
  if (share === 0) return { train, val: await read("val", most) };
  return heldOut(train, { share, most, seed: setting(config, "training.seed") });
}

/** The rest stays in the order of the file. */
function heldOut<E>(
  examples: readonly E[],
  { share, most, seed }: { share: number; most: number; seed: number },
): RowExamples<E> {
  const count = Math.max(Math.round(examples.length * share), 1);
  if (count >= examples.length)
    throw new ConfigError(
      `Cannot hold out a share of the training rows: none is left to train on (data.val_set_size=${share} of ${examples.length}). Add rows, or name held-out rows with data.val_files.`,
      { path: "data.val_set_size" },
    );
  const held = new Set(shuffledIndices(examples.length, seed).slice(0, count));
  const val = examples.filter((_, i) => held.has(i));
  return { train: examples.filter((_, i) => !held.has(i)), val: most < 0 ? val : val.slice(0, most) };
}
