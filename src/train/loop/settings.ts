/**
 * The settings that the loop reads, in the sections and under the names of the configuration: those of `rllm.*`, and
 * `training.*`, `warmup.*` and `pipeline.*`. The rows with `loop` in config/fields define names, types and defaults;
 * settings_config.ts reads them from a composed configuration.
 */

import type { SamplingParams } from "../../engine/contract/backend.ts";
import { ConfigError } from "../../leaves/errors.ts";
import { nearest } from "../../leaves/nearest.ts";
import { fitResolved } from "../config/fields/fit.ts";
import { LOOP_ROWS, type LoopTree, loopTree } from "../config/fields/loop.ts";
import { getAt, isTree, type Tree, type YamlValue } from "../config/yaml/tree.ts";

/** Everything the loop reads: `settings.rollout.n` is `rllm.rollout.n` of a configuration. */
export interface LoopSettings extends LoopTree {}

export type SamplingSettings = LoopSettings["rollout"]["train"];

/** Any subset of a settings tree. */
export type Partly<T> = T extends readonly unknown[]
  ? T
  : T extends object
    ? { readonly [K in keyof T]?: Partly<T[K]> | undefined }
    : T;

const DEFAULTS = loopTree(() => undefined) as LoopSettings;

/** The published eight stages. */
export const STAGE_ORDER: readonly string[] = DEFAULTS.pipeline.stages;

/**
 * Returns the defaults, overridden by the given parts.
 * @throws {ConfigError} for an unknown name, or a value that does not fit its setting.
 */
export function loopSettings(settings: Partly<LoopSettings> = {}): LoopSettings {
  const tree = settings as unknown as YamlValue;
  refuseUnknown(DEFAULTS as unknown as Tree, tree, "");
  return loopTree(({ at, field }) => {
    const value = getAt(tree, at);
    if (value === undefined) return undefined;
    const { value: fitted, problem } = fitResolved(at, field, value);
    if (problem !== undefined) throw new ConfigError(problem, { path: at });
    return fitted;
  });
}

const SETTINGS: ReadonlySet<string> = new Set(LOOP_ROWS.map(({ at }) => at));

/** Checks the names of sections and settings for untyped callers; a setting that is a dict takes any name. */
function refuseUnknown(fields: Tree, tree: YamlValue | undefined, path: string): void {
  if (tree === undefined || SETTINGS.has(path)) return;
  if (!isTree(tree)) {
    const name = path || "settings";
    throw new ConfigError(`Cannot set ${name}: it takes an object (${JSON.stringify(tree)}).`, {
      path: name,
    });
  }
  for (const [key, value] of Object.entries(tree)) {
    const below = path === "" ? key : `${path}.${key}`;
    if (!Object.hasOwn(fields, key)) throw unknownName(below, key, Object.keys(fields));
    refuseUnknown(fields[key] as Tree, value, below);
  }
}

function unknownName(path: string, key: string, names: readonly string[]): ConfigError {
  const close = nearest(key, names);
  const advice = close ? `Did you mean ${close}?` : `Names: ${names.join(", ")}.`;
  return new ConfigError(`Cannot set ${path}: there is no such setting. ${advice}`, { path });
}

export function samplingParams(settings: SamplingSettings, stopTokenIds: readonly number[]): SamplingParams {
  const { temperature, top_p, top_k, max_tokens } = settings;
  return { temperature, top_p, top_k, max_tokens, stop_token_ids: stopTokenIds };
}
