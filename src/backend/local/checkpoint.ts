/**
 * A local checkpoint: a model folder (or a PEFT adapter) that other tools read, and beside it the optimiser's moments
 * and step, so that training goes on bit for bit.
 */
import { ConfigError } from "../../errors.ts";
import { modelConfigJson, parseModelConfig, weightShapes } from "../../model/files/config.ts";
import { configDifferences } from "../../model/files/fingerprint.ts";
import { kindOf, openTensors, readJson, saveModelFolder } from "../../model/files/folder.ts";
import { openAdapter, saveAdapter } from "../../model/files/peft.ts";
import { encodeSafetensors, type TensorSource } from "../../model/files/safetensors_write.ts";
import type { TextTokenizer } from "../../model/files/tokenizer.ts";
import type { LanguageModel } from "../../model/language_model.ts";
import type { ModelMark } from "../../model/open_model.ts";
import type { ParameterSet } from "../../model/parameters.ts";
import { describeLora, type LoraAdapter, moduleOf } from "../../model/train/lora_adapter.ts";

interface CheckpointOptions {
  readonly model: LanguageModel;
  readonly tokenizer?: TextTokenizer | undefined;
  /** Recorded in an adapter's files. */
  readonly base?: ModelMark | undefined;
  /** Whether the optimiser's state goes along. Default true. */
  readonly optimizer?: boolean;
}

const OPTIMIZER = "optimizer";
const REFERENCE = "reference";

/**
 * Writes `dir`: weights or adapter, tokenizer, and unless it is left out `optimizer.safetensors`, with
 * `reference.safetensors` where one is kept.
 */
export async function saveCheckpoint(dir: string, options: CheckpointOptions): Promise<void> {
  const { model, tokenizer } = options;
  if (model.adapter) await saveAdapterFiles(dir, options);
  else {
    const tensors = await weightTensors(model, model.base.values);
    await saveModelFolder(dir, { config: model.config, tensors, tokenizer });
  }
  if (options.optimizer === false) return;
  const { writeFolder } = await import("../../model/files/disk.ts");
  const { optimizer, frozenReference } = model;
  const moments = [
    ...(await setTensors(optimizer.means, "mean.")),
    ...(await setTensors(optimizer.variances, "variance.")),
    { name: "step", shape: [1], data: Int32Array.of(optimizer.step) },
  ];
  const files = [{ name: `${OPTIMIZER}.safetensors`, content: encodeSafetensors(moments) }];
  if (frozenReference) {
    const tensors = await weightTensors(model, frozenReference.values);
    files.push({ name: `${REFERENCE}.safetensors`, content: encodeSafetensors(tensors) });
  }
  await writeFolder(dir, files);
}

async function saveAdapterFiles(dir: string, { model, tokenizer, base }: CheckpointOptions): Promise<void> {
  const adapter = model.adapter as LoraAdapter;
  const values = await adapter.values.read();
  const modules = new Map(
    [...adapter.parts.values()].flat().map(({ tensor, rows, columns }) => {
      const module = moduleOf(tensor);
      return [
        module,
        { a: values.get(`${module}.A`)!, b: values.get(`${module}.B`)!, inSize: columns, outSize: rows },
      ] as const;
    }),
  );
  await saveAdapter(dir, { ...adapter.config, base: base?.folder, fingerprint: base?.fingerprint, modules });
  if (!tokenizer) return;
  const { writeFolder } = await import("../../model/files/disk.ts");
  await writeFolder(
    dir,
    Object.entries(tokenizer.files()).map(([name, content]) => ({ name, content })),
  );
}

async function weightTensors(model: LanguageModel, values: ParameterSet): Promise<TensorSource[]> {
  const data = await model.base.readTensors(values);
  return [...weightShapes(model.config)].map(([name, shape]) => ({ name, shape, data: data.get(name)! }));
}

async function setTensors(values: ParameterSet, prefix: string): Promise<TensorSource[]> {
  return [...(await values.read())].map(([name, data]) => ({
    name: prefix + name,
    shape: [data.length],
    data,
  }));
}

/**
 * The inverse of {@link saveCheckpoint} into a model of the same shape.
 * @param options.optimizer false leaves the saved moments aside and starts with none. Default true.
 * @param options.base the model's base: an adapter that was trained on another one is refused.
 * @throws ConfigError when the checkpoint is another model's, has another shape, or is damaged.
 */
export async function loadCheckpoint(
  dir: string,
  model: LanguageModel,
  options: { readonly optimizer?: boolean; readonly base?: ModelMark | undefined } = {},
): Promise<void> {
  await checkKind(dir, model);
  if (model.adapter) await loadAdapter(dir, model, options);
  else await loadWeights(dir, { model, stem: "model", into: model.base.values });
  if (options.optimizer === false) model.optimizer.reset();
  else await loadOptimizer(dir, model);
  if ((await listNames(dir)).includes(`${REFERENCE}.safetensors`)) {
    model.freezeReference();
    await loadWeights(dir, { model, stem: REFERENCE, into: model.frozenReference!.values });
    model.frozenReference!.refresh();
  }
  model.refresh();
  await model.device.submit();
}

/**
 * The adapter's values alone, into a model with an adapter of that shape.
 * @throws ConfigError as {@link loadCheckpoint}
 */
export async function loadAdapter(
  dir: string,
  model: LanguageModel,
  { base }: { readonly base?: ModelMark | undefined } = {},
): Promise<void> {
  const saved = await openAdapter(dir);
  if (base && saved.fingerprint !== undefined && saved.fingerprint !== base.fingerprint) {
    throw new ConfigError(
      `Cannot load the adapter: it was trained on another model than ${base.folder}: ${saved.base ?? "it does not say which"}.`,
      { file: dir },
    );
  }
  (model.adapter as LoraAdapter).load(saved, `${dir}/adapter_config.json`);
  model.refresh();
}

async function checkKind(dir: string, model: LanguageModel): Promise<void> {
  const { diskFolder } = await import("../../model/files/disk.ts");
  const folder = await diskFolder(dir);
  const kind = await kindOf(folder);
  if (kind === "adapter" && !model.adapter)
    throw new ConfigError(
      "Cannot load the checkpoint: it holds an adapter, and all weights of the model train.",
      {
        file: dir,
      },
    );
  if (kind === "adapter") return;
  if (model.adapter)
    throw new ConfigError(
      `Cannot load the checkpoint: it holds all weights of a model, and the model trains an adapter (${describeLora(model.adapter.config)}).`,
      { file: dir },
    );
  const file = `${dir}/config.json`;
  const saved = parseModelConfig(await readJson(folder, "config.json"), file);
  // As it would read back: what config.json cannot say is no difference.
  const own = parseModelConfig(modelConfigJson(model.config, "float32"), file);
  const differences = configDifferences(saved, own);
  if (differences.length === 0) return;
  throw new ConfigError(
    `Cannot load the checkpoint: it is another model's. The checkpoint and the model differ in ${differences.join("; ")}.`,
    { file },
  );
}

async function loadOptimizer(dir: string, { optimizer }: LanguageModel): Promise<void> {
  const steps = await openStep(dir);
  const saved = await openTensors(dir, OPTIMIZER);
  for (const [values, prefix] of [
    [optimizer.means, "mean."],
    [optimizer.variances, "variance."],
  ] as const)
    for (const name of values.layout.entries.keys()) values.write(name, await saved.read(prefix + name));
  const [step] = await steps.readIntegers("step");
  optimizer.step = step!;
  optimizer.gradients.clear();
}

async function loadWeights(
  dir: string,
  at: { model: LanguageModel; stem: string; into: ParameterSet },
): Promise<void> {
  const saved = await openTensors(dir, at.stem);
  for (const part of at.model.base.parts) {
    const data = await saved.read(part.tensor);
    if (data.length !== part.rows * part.columns)
      throw new ConfigError(
        `Cannot resume as ${part.tensor} must hold ${part.rows} x ${part.columns} weights: ${data.length}. The checkpoint is another model's.`,
        { file: `${dir}/${at.stem}.safetensors` },
      );
    at.model.device.write(at.into.get(part.fused), data, part.row * part.columns * 4);
  }
}

async function openStep(dir: string) {
  const { diskFile } = await import("../../model/files/disk.ts");
  const { openSafetensors } = await import("../../model/files/safetensors.ts");
  const file = await diskFile(`${dir}/${OPTIMIZER}.safetensors`);
  if (file) return openSafetensors(file);
  throw new ConfigError(
    "Cannot continue training: the checkpoint has no optimizer.safetensors, so its weights can be sampled and evaluated only. To train on from them, give them as the model (model.name).",
    { file: dir },
  );
}

async function listNames(dir: string): Promise<string[]> {
  const { listFolder } = await import("../../model/files/disk.ts");
  return listFolder(dir);
}
