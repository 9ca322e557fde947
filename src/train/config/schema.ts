/** Settings that exist on a backend, and whether a value fits one. */

import { nearest } from "../../leaves/nearest.ts";
import { BACKEND_FIELDS, BACKENDS, type BackendName, isClusterBackend } from "./fields/backend_fields.ts";
import type { Field, FieldTable, ValueOf } from "./fields/field.ts";
import type { LOCAL_FIELDS } from "./fields/local.ts";
import { ROW_TABLES, type RowCommand } from "./fields/reward_model.ts";
import { RLLM_FIELDS } from "./fields/rllm.ts";
import type { TINKER_FIELDS } from "./fields/tinker.ts";
import { verlFields } from "./fields/verl_tree.ts";
import { nearestPath } from "./problem.ts";
import { VERL_SHARED_RLLM } from "./sync/tables.ts";
import { getAt, leaves, type Tree } from "./yaml/tree.ts";

/** Every setting of the portable table and of the local backend, with its type. */
export type LocalFields = typeof RLLM_FIELDS & typeof LOCAL_FIELDS;
export type SettingName = keyof LocalFields & string;

/**
 * Reads a resolved setting by its path, typed by its row: `setting(config, "rllm.rollout.n")`.
 * The support test looks for the literal path, so a setting that is read this way counts as acting.
 */
export function setting<K extends SettingName>(config: Tree, path: K): ValueOf<LocalFields, K> {
  return getAt(config, path) as ValueOf<LocalFields, K>;
}

/** The same for the settings of the tinker backend alone. */
export function tinkerSetting<K extends keyof typeof TINKER_FIELDS & string>(
  config: Tree,
  path: K,
): ValueOf<typeof TINKER_FIELDS, K> {
  return getAt(config, path) as ValueOf<typeof TINKER_FIELDS, K>;
}

export interface ConfigSchema {
  readonly backend: BackendName;
  /** Fields by path; the ones that end in `.*` are in `openSections` instead. */
  readonly fields: ReadonlyMap<string, Field>;
  readonly openSections: readonly string[];
  readonly sections: ReadonlySet<string>;
  /** The command that lists the settings. */
  readonly listing: string;
  /** Further names of settings. */
  readonly aliases?: ReadonlyMap<string, string>;
}

/** The settings of a backend. `nativeTree` is verl's own tree, for the backends that stand on it. */
export function schemaOf(backend: BackendName, nativeTree?: Tree): ConfigSchema {
  const native = isClusterBackend(backend) && nativeTree ? verlFields(leaves(nativeTree)) : {};
  return schemaFrom(backend, { ...native, ...rllmFields(backend), ...BACKEND_FIELDS[backend] });
}

/** The settings of `grpu sft`, `grpu dpo` or `grpu reward-model`. The names that a training run has for them are further names, because its messages use them. */
export function rowSchema(command: RowCommand): ConfigSchema {
  const fields = ROW_TABLES[command];
  const named = Object.entries(fields).flatMap(([path, { same }]) => (same ? [[same, path] as const] : []));
  return { ...schemaFrom("local", fields), listing: `grpu config show --${command}`, aliases: new Map(named) };
}

function schemaFrom(backend: BackendName, table: FieldTable): ConfigSchema {
  const fields = new Map<string, Field>();
  const openSections: string[] = [];
  const sections = new Set<string>();
  for (const [path, field] of Object.entries(table)) {
    if (path.endsWith(".*")) openSections.push(path.slice(0, -2));
    else fields.set(path, field);
    for (let dot = path.indexOf("."); dot > 0; dot = path.indexOf(".", dot + 1)) sections.add(path.slice(0, dot));
  }
  return { backend, fields, openSections, sections, listing: "grpu config show" };
}

/** verl takes null for every setting that it shares, as the published synchronisation does. */
function rllmFields(backend: BackendName): FieldTable {
  if (!isClusterBackend(backend)) return RLLM_FIELDS;
  const fields: Record<string, Field> = { ...RLLM_FIELDS };
  for (const path of VERL_SHARED_RLLM)
    if (fields[path] !== undefined) fields[path] = { ...fields[path], nullable: true };
  return fields;
}

/** The field of a path: its own, or that of the dict or open section that contains it. */
export function fieldAt(schema: ConfigSchema, path: string): Field | "open" | undefined {
  const field = schema.fields.get(path);
  if (field) return field;
  for (let dot = path.lastIndexOf("."); dot > 0; dot = path.lastIndexOf(".", dot - 1)) {
    const parent = path.slice(0, dot);
    const type = schema.fields.get(parent)?.type;
    if (type === "dict" || type === "any" || schema.openSections.includes(parent)) return "open";
  }
  return undefined;
}

/** The message for an unknown setting: the backend that has it, or the nearest name. */
export function explainUnknown(schema: ConfigSchema, path: string): string {
  const elsewhere = BACKENDS.filter((name) => name !== schema.backend && path in BACKEND_FIELDS[name]);
  if (elsewhere.length > 0) {
    return `Cannot set ${path}: the ${schema.backend} backend has no such setting. It belongs to rllm/backend=${elsewhere.join("|")}.`;
  }
  if (path === "hydra" || path.startsWith("hydra.")) {
    return `Cannot set ${path}: it configures Hydra, which is not used here. Remove it.`;
  }
  const close = nearestPath(path, [...schema.fields.keys()]) ?? nearest(path, schema.sections);
  const advice = close ? `Did you mean ${close}?` : `List them with: ${schema.listing}`;
  return `Cannot set ${path}: there is no such setting. ${advice}`;
}
