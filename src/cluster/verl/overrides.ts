/**
 * The command line of verl's trainer for a composed configuration: Hydra overrides on verl's own defaults, only for what
 * differs, and the settings with which the run's files, rewards and agents take part.
 */
import type { Composed } from "../../train/config/compose.ts";
import { BACKEND_FIELDS } from "../../train/config/fields/backend_fields.ts";
import { isOurs } from "../../train/config/fields/verl.ts";
import { DEFAULT_ENGINE, verlLeaves } from "../../train/config/fields/verl_tree.ts";
import { interpolator } from "../../train/config/hydra/interpolate.ts";
import type { Problem } from "../../train/config/problem.ts";
import { LEVEL, originOf } from "../../train/config/yaml/layer.ts";
import {
  equalValues,
  getAt,
  hasInterpolation,
  isTree,
  leaves,
  setAt,
  type Tree,
  type YamlValue,
} from "../../train/config/yaml/tree.ts";
import { overrideText } from "../convert/write.ts";
import { ownSettings, type RunFiles } from "./own_settings.ts";
import { findVerlRefusals } from "./refusals.ts";
import type { VerlVersion } from "./versions.ts";

export interface OverrideRequest {
  /** Composed with `rllm/backend=verl`. */
  readonly composed: Composed;
  readonly version: VerlVersion;
  /** Text of a packaged file, for verl's defaults. */
  readonly readConfig: (name: string) => string | undefined;
  readonly files: RunFiles;
  /** Names of the run's own stages, losses and other hooks in TypeScript that would act in the training step. */
  readonly hooks?: readonly string[];
}

export interface VerlOverrides {
  /** `key=value`, in Hydra's grammar, not yet quoted for a shell; what the run sets for itself comes last. */
  readonly overrides: readonly string[];
  /** Errors make the run impossible; warnings name what has no effect. */
  readonly problems: readonly Problem[];
}

/** Settings that the unified loop pins for itself (`config/rllm/backend/verl.yaml`); verl's own trainer keeps its defaults. */
const ONLY_UNIFIED: ReadonlySet<string> = new Set([
  "actor_rollout_ref.rollout.agent.num_workers",
  "actor_rollout_ref.actor.use_rollout_log_probs",
  "data.gen_batch_size",
  "data.return_multi_modal_inputs",
]);

/** The overrides of a run, and what is wrong with it. */
export function verlOverrides(request: OverrideRequest): VerlOverrides {
  const { composed, version } = request;
  const defaults = defaultTree(request);
  const pinned = ownSettings(composed, { version, files: request.files });
  const wanted = new Map([...explicitSettings(composed), ...pinned]);
  const problems: Problem[] = [];
  const values = new Map<string, YamlValue>();
  for (const [path, value] of wanted) {
    const home = homeOf(path, defaults);
    if (home !== undefined) values.set(home, home === path ? value : getAt(composed.config, home)!);
    else if (isAdded(path, composed)) values.set(path, value);
    else problems.push(lacking(path, request));
  }
  const tree = structuredClone(defaults);
  for (const [path, value] of values) setAt(tree, path, value);
  const differing = [...values].filter(([path, value]) => differs(path, value, { tree, defaults }));
  const overrides = differing.map(([path, value]) => {
    const sign = getAt(defaults, path) === undefined ? "+" : "";
    return `${sign}${path}=${overrideText(value)}`;
  });
  const engine = engineOf(composed);
  const choice = engine === DEFAULT_ENGINE ? [] : [`model_engine=${engine}`];
  problems.push(...findVerlRefusals({ composed, version, files: request.files, hooks: request.hooks ?? [] }));
  return { overrides: [...choice, ...overrides], problems };
}

function engineOf({ config }: Composed): string {
  const engine = getAt(config, "model_engine");
  return typeof engine === "string" ? engine : DEFAULT_ENGINE;
}

function defaultTree({ composed, version, readConfig }: OverrideRequest): Tree {
  const tree: Tree = {};
  for (const [path, { value }] of verlLeaves(readConfig, version.tree, engineOf(composed))) {
    if (!version.lacks?.test(path)) setAt(tree, path, value);
  }
  for (const [path, value] of Object.entries(version.defaults ?? {})) setAt(tree, path, value);
  return tree;
}

/** verl's settings that a file, an override, a base file of ours or the synchronisation wrote, with their values. */
export function explicitSettings({ config, origins }: Composed): Map<string, YamlValue> {
  const found = new Map<string, YamlValue>();
  for (const [path, value] of leaves(config)) {
    const level = originOf(origins, path)?.level ?? LEVEL.native;
    if (level === LEVEL.native || path === "model_engine" || isOurs(path) || OF_THE_LOOP.test(path)) continue;
    if (level < LEVEL.file && ONLY_UNIFIED.has(path)) continue;
    found.set(path, value);
  }
  return found;
}

/** Sections of the unified loop, which verl's tree does not have. */
const OF_THE_LOOP = /^(rollout|async_training)\./;

/**
 * The place in verl's tree that holds a setting: itself, the empty dict around it (itself again, as a new key), or the
 * setting above it that is null there and becomes a dict as a whole. Undefined where the tree has none of them.
 */
function homeOf(path: string, defaults: Tree): string | undefined {
  if (getAt(defaults, path) !== undefined) return path;
  for (let dot = path.lastIndexOf("."); dot > 0; dot = path.lastIndexOf(".", dot - 1)) {
    const above = path.slice(0, dot);
    const value = getAt(defaults, above);
    if (value === undefined) continue;
    if (!isTree(value)) return above;
    return Object.keys(value).length === 0 ? path : undefined;
  }
  return undefined;
}

/** True of a key that no tree of verl's has: the user added it with `+`, and a warning said that it is passed on unchecked. */
function isAdded(path: string, { schema }: Composed): boolean {
  return !schema.fields.has(path) || path in BACKEND_FIELDS.verl;
}

function lacking(path: string, { composed, version }: OverrideRequest): Problem {
  const { file, line } = originOf(composed.origins, path) ?? {};
  const message = `Cannot set ${path}: verl ${version.name} has no such setting. Remove it, or choose another version of verl.`;
  return { severity: "error", message, path, file, line };
}

/** Compares with what verl would make of its default, given the other overrides: its defaults refer to each other. */
function differs(path: string, value: YamlValue, { tree, defaults }: { tree: Tree; defaults: Tree }): boolean {
  const usual = getAt(defaults, path);
  if (usual === undefined) return true;
  if (!hasInterpolation(usual)) return !equalValues(usual, value);
  setAt(tree, path, usual);
  const resolved = interpolator(tree, {}).at(path);
  setAt(tree, path, value);
  return resolved === undefined || !equalValues(resolved, value);
}
