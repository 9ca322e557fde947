/** Shapes that a checkpoint fixes, whatever the configuration's defaults are: an adapter's, or that of a whole model. */
import { existsSync } from "node:fs";
import { join } from "node:path";
import type { ModelConfig } from "../../../engine/model/config.ts";
import { parseModelConfig } from "../../../engine/model/files/config_json.ts";
import { configDifferences } from "../../../engine/model/files/fingerprint.ts";
import { folderKind, openFolder } from "../../../engine/model/files/open_folder.ts";
import { readAdapterShape } from "../../../engine/model/files/peft.ts";
import { readFolderJson } from "../../../engine/model/files/reader.ts";
import { ATTENTION_TARGETS, type LoraConfig, MLP_TARGETS, UNEMBED_TARGET } from "../../../engine/model/lora.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { setting } from "../../config/schema.ts";
import { getAt, setAt, type Tree } from "../../config/yaml/tree.ts";
import type { ModelSession } from "../session.ts";

/** A setting of the checkpoint's own; undefined where no value of the setting describes it. */
type Fixed = readonly [path: string, value: number | boolean | string | undefined];

/**
 * The session with the checkpoint's shape in its configuration.
 * @param options.isTrained false: a model to sample and score only, which has its own shape whatever the configuration trains
 * @throws {ConfigError} with both values where the configuration trains another shape than the checkpoint's.
 */
export async function adoptCheckpoint<S extends ModelSession>(
  session: S,
  dir: string,
  { isTrained = true }: { isTrained?: boolean | undefined } = {},
): Promise<S> {
  const adapter = (await folderKind(dir)) === "adapter" ? await readAdapterShape(dir) : undefined;
  const fixed = adapter
    ? adapterSettings(adapter)
    : isTrained
      ? await modelSettings(session, dir)
      : await ownModel(dir);
  const conflicts = isTrained ? fixed.filter(([path, value]) => contradicts(session, path, value)) : [];
  if (conflicts.length > 0) throw conflictError(session.config, { dir, conflicts });
  const config = structuredClone(session.config);
  for (const [path, value] of fixed) if (value !== undefined) setAt(config, path, value);
  const base = adapter?.base;
  if (setting(config, "model.name") === null && base !== undefined && existsSync(base))
    setAt(config, "model.name", base);
  return { ...session, config };
}

/** Null has no opinion: model.train_unembed follows the model. */
function contradicts({ config, isGiven }: ModelSession, path: string, value: Fixed[1]): boolean {
  const configured = getAt(config, path);
  return isGiven(path) && configured !== null && configured !== value;
}

function adapterSettings({ rank, alpha, targets }: LoraConfig): Fixed[] {
  return [
    ["model.lora_rank", rank],
    ["model.lora_alpha", alpha],
    ["model.train_attn", wholly(targets, ATTENTION_TARGETS)],
    ["model.train_mlp", wholly(targets, MLP_TARGETS)],
    ["model.train_unembed", targets.includes(UNEMBED_TARGET)],
  ];
}

/** True for the whole group, false for none of it, undefined for a part. */
function wholly(targets: readonly string[], group: readonly string[]): boolean | undefined {
  const count = group.filter((name) => targets.includes(name)).length;
  return count === group.length ? true : count === 0 ? false : undefined;
}

async function modelSettings({ config }: ModelSession, dir: string): Promise<Fixed[]> {
  const saved = await configOf(dir);
  const name = setting(config, "model.name");
  if (name !== null) {
    const isThere = existsSync(join(name, "config.json"));
    // A reward model's checkpoint has a head in place of the output matrix.
    const differences = isThere
      ? configDifferences(saved, { ...(await configOf(name)), scoreHead: saved.scoreHead })
      : [];
    if (differences.length === 0) return [["model.lora_rank", 0]];
    throw new ConfigError(
      `Cannot open the checkpoint ${dir}: it is another model's. It and ${name} differ in ${differences.join("; ")}.`,
      { path: "model.name" },
    );
  }
  return [
    ["model.lora_rank", 0],
    ["model.init.hidden_size", saved.hiddenSize],
    ["model.init.intermediate_size", saved.intermediateSize],
    ["model.init.layers", saved.layers],
    ["model.init.heads", saved.heads],
    ["model.init.kv_heads", saved.kvHeads],
    ["model.init.head_dim", saved.headDim],
  ];
}

/** A whole model by itself. @throws {ConfigError} for a config.json that cannot be read */
async function ownModel(dir: string): Promise<Fixed[]> {
  await configOf(dir);
  return [
    ["model.name", dir],
    ["model.lora_rank", 0],
  ];
}

async function configOf(dir: string): Promise<ModelConfig> {
  return parseModelConfig(await readFolderJson(await openFolder(dir), "config.json"), join(dir, "config.json"));
}

function conflictError(config: Tree, { dir, conflicts }: { dir: string; conflicts: readonly Fixed[] }): ConfigError {
  const both = conflicts.map(
    ([path, value]) =>
      `${path} is ${value ?? "true for some matrices only"}, and the configuration says ${getAt(config, path)}`,
  );
  const overrides = conflicts.filter(([, value]) => value !== undefined).map((pair) => pair.join("="));
  const say = overrides.length === conflicts.length ? `, or add ${overrides.join(" ")}` : "";
  return new ConfigError(
    `Cannot open the checkpoint ${dir} in another shape: its ${both.join("; ")}. Remove ${conflicts.map(([path]) => path).join(", ")} from the configuration${say}.`,
    { path: conflicts[0]![0] },
  );
}
