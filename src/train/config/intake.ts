/** Checks what the user wrote: every setting is known, fits its type, and is not a masked secret. */

import { isClusterBackend } from "./fields/backend_fields.ts";
import { fitValue, type Registered } from "./fields/fit.ts";
import { ALIASES, movedInVerl, RENAMES } from "./fields/rename.ts";
import { VERL_OF_BACKENDS } from "./fields/verl_names.ts";
import type { Override } from "./hydra/override.ts";
import { MASK } from "./mask.ts";
import type { Problem } from "./problem.ts";
import { type ConfigSchema, explainUnknown, fieldAt } from "./schema.ts";
import { isSecret, maskOverride, showSetting } from "./secret.ts";
import { LOCAL_INSTEAD, LOCAL_SHARED, TINKER_SHARED, VERL_CLIP, VERL_SHARED, VERL_STEPS } from "./sync/tables.ts";
import { type ConfigLayer, forgetOrigins, LEVEL, lineOf, mergeTree, type Origins } from "./yaml/layer.ts";
import { deleteAt, getAt, isTree, joinPath, leaves, setAt, splitPath, type Tree, type YamlValue } from "./yaml/tree.ts";

export interface Intake {
  readonly schema: ConfigSchema;
  readonly registered: Registered;
  readonly problems: Problem[];
  /** The choice among verl's trees that has a setting which this one lacks. */
  readonly otherTree?: (path: string) => string | undefined;
}

type AddProblem = (severity: Problem["severity"], path: string, message: string) => void;

/** Returns the valid settings of a user's file; reports and drops the rest. */
export function checkUserTree(layer: ConfigLayer, intake: Intake): ConfigLayer {
  const tree: Tree = {};
  const lines = new Map(layer.lines);
  const addProblem: AddProblem = (severity, path, message) => {
    intake.problems.push({ severity, message, path, file: layer.file, line: lineOf(lines, path) });
  };
  for (const [path, value] of leaves(layer.tree)) {
    const renamed = RENAMES[path];
    if (renamed) {
      addProblem("warning", path, `${path} is now ${renamed}. The old name still works.`);
      lines.set(renamed, lineOf(layer.lines, path) ?? 1);
    }
    const alias = aliasOf(path, intake.schema);
    if (alias) lines.set(alias, lineOf(layer.lines, path) ?? 1);
    const target = renamed ?? alias ?? path;
    const isEmptySection = intake.schema.sections.has(path) && (value === null || isEmptyTree(value));
    if (isEmptySection) continue;
    const mayAdd = layer.added?.includes(path) ?? false;
    const accepted = takeValue(target, value, { ...intake, addProblem, mayAdd });
    if (accepted !== undefined) setAt(tree, target, accepted);
  }
  return { ...layer, tree, lines };
}

/** The setting that a further spelling means on this backend. */
function aliasOf(path: string, { fields, aliases }: ConfigSchema): string | undefined {
  const alias = aliases?.get(path) ?? ALIASES[path];
  return alias !== undefined && fields.has(alias) ? alias : undefined;
}

interface TakeContext extends Intake {
  readonly addProblem: AddProblem;
  /** The value as it was typed, for settings that are text. */
  readonly typed?: string | undefined;
  /** `+key`, or `# @added key` in a file: a key that no table has passes. */
  readonly mayAdd?: boolean;
  /** The tree so far, with the keys that earlier overrides added. */
  readonly tree?: Tree;
}

function takeValue(path: string, value: YamlValue, context: TakeContext): YamlValue | undefined {
  const { schema, addProblem } = context;
  if (isTree(value) && Object.keys(value).length > 0 && schema.sections.has(path)) {
    const section: Tree = {};
    for (const [below, item] of leaves(value)) {
      const accepted = takeValue(`${path}.${below}`, item, { ...context, typed: undefined });
      if (accepted !== undefined) setAt(section, below, accepted);
    }
    return section;
  }
  const field = fieldAt(schema, path);
  if (field === undefined) return takeUnknown(path, value, context);
  if (holdsMask(path, value)) {
    addProblem(
      "error",
      path,
      `Cannot set ${path}: this is a masked secret (${MASK}). Write the value, or \${oc.env:NAME}.`,
    );
    return undefined;
  }
  if (field === "open") return value;
  const isText = field.type === "str" && (typeof value === "number" || typeof value === "boolean");
  const fit = fitValue(path, field, isText ? (context.typed ?? value) : value, context.registered);
  if (fit.warning) addProblem("warning", path, fit.warning);
  if (fit.problem === undefined) return fit.value;
  addProblem("error", path, isSecret(path) ? `Cannot set ${path}: it takes text.` : fit.problem);
  return undefined;
}

/** The rule for keys that no table has: `key=` refuses them as typing errors, `+key=` adds them. */
function takeUnknown(path: string, value: YamlValue, context: TakeContext): YamlValue | undefined {
  const { schema, addProblem, mayAdd } = context;
  const above = valueAbove(schema, path);
  if (above !== undefined) {
    addProblem("error", path, `Cannot set ${path}: ${above} is a value, not a section.`);
    return undefined;
  }
  if (!schema.sections.has(path) && getAt(context.tree, path) !== undefined) return value;
  if ((mayAdd || isDictOfEngine(path, context)) && !schema.sections.has(path)) {
    const isNative = isClusterBackend(schema.backend) && !path.startsWith("rllm.");
    const whose = isNative
      ? "is not in verl's tree. It is passed on unchecked."
      : "is not a known setting. Nothing here reads it.";
    addProblem("warning", path, `${path} ${whose}`);
    return value;
  }
  if (schema.sections.has(path)) {
    const example = [...schema.fields.keys()].find((field) => field.startsWith(`${path}.`));
    addProblem(
      "error",
      path,
      `Cannot set ${path}: it is a section, not a setting (${showSetting(path, value)}). Set for instance ${example}.`,
    );
    return undefined;
  }
  const tree = isClusterBackend(schema.backend) ? context.otherTree?.(path) : undefined;
  const elsewhere = tree && `Cannot set ${path}: this tree of verl's has no such setting. Choose ${tree}.`;
  addProblem("error", path, elsewhere ?? otherName(schema, path) ?? explainUnknown(schema, path));
  return undefined;
}

/**
 * True of a file's key in one of the dicts that verl hands to Megatron or transformers (`override_transformer_config`, ...).
 * Their names are not verl's, and its defaults list only a few of them. On the command line they need a `+`, as with Hydra.
 */
function isDictOfEngine(path: string, { schema, tree }: TakeContext): boolean {
  const isInFile = tree === undefined;
  const [dict] = /.*\.override_\w+(?=\.)/.exec(path) ?? [];
  return isInFile && dict !== undefined && schema.sections.has(dict);
}

/** The setting above a path, which would have to be a section. */
function valueAbove(schema: ConfigSchema, path: string): string | undefined {
  for (let dot = path.lastIndexOf("."); dot > 0; dot = path.lastIndexOf(".", dot - 1)) {
    if (schema.fields.has(path.slice(0, dot))) return path.slice(0, dot);
  }
  return undefined;
}

/** Says which name a setting of another system, or of another version of verl, has here. */
function otherName(schema: ConfigSchema, path: string): string | undefined {
  if (schema.aliases) return undefined;
  const moved = isClusterBackend(schema.backend) ? movedInVerl(path) : undefined;
  if (moved && fieldAt(schema, moved)) {
    return `Cannot set ${path}: this version of verl has it elsewhere. Set ${moved}.`;
  }
  const rows = [...VERL_SHARED, ...LOCAL_SHARED, ...TINKER_SHARED, VERL_STEPS];
  const clip = [VERL_CLIP.ratio, VERL_CLIP.low].some((name) => name === path) ? VERL_CLIP.rllm : undefined;
  const rllm = clip ?? rows.find((row) => row.native === path)?.rllm;
  const portable = rllm === undefined ? ownName(schema, path) : `${rllm}, the portable name`;
  if (portable === undefined) return undefined;
  return `Cannot set ${path}: the ${schema.backend} backend has no such setting. Set ${portable}.`;
}

/** The backend's setting that does what one of verl's does. */
function ownName(schema: ConfigSchema, path: string): string | undefined {
  const native = VERL_OF_BACKENDS.find(({ verl }) => verl === path)?.native;
  if (native !== undefined && schema.fields.has(native)) return native;
  return schema.backend === "local" ? LOCAL_INSTEAD[path] : undefined;
}

function holdsMask(path: string, value: YamlValue): boolean {
  return (
    typeof value === "string" && value.includes(MASK) && (isSecret(path) || value === MASK || /:\*{8}@/.test(value))
  );
}

function isEmptyTree(value: YamlValue): boolean {
  return isTree(value) && Object.keys(value).length === 0;
}

interface ApplyContext extends Intake {
  readonly tree: Tree;
  readonly origins: Origins;
}

/** Applies one override of the command line to a tree. */
export function applyOverride(override: Override, context: ApplyContext): void {
  const { tree, origins, problems } = context;
  if (override.kind === "group") return;
  const path =
    RENAMES[override.key] ?? aliasOf(override.key, context.schema) ?? override.key.replace(/\[(\d+)\]/g, ".$1");
  const addProblem: AddProblem = (severity, at, message) => problems.push({ severity, message, path: at });
  if (override.kind === "delete") {
    deleteSetting(override, path, { ...context, addProblem });
    return;
  }
  if (path !== override.key && RENAMES[override.key]) {
    addProblem("warning", path, `${override.key} is now ${path}. The old name still works.`);
  }
  if (override.kind === "add" && getAt(tree, path) !== undefined && !isTree(getAt(tree, path))) {
    addProblem("error", path, `Cannot add ${path}: it exists (${maskOverride(override.text, path)}). Leave out the +.`);
    return;
  }
  const { at, value: item } = intoList(tree, path, override.value as YamlValue, addProblem) ?? {};
  if (at === undefined || item === undefined) return;
  const written = override.text.slice(override.text.indexOf("=") + 1).trim();
  // A cast changes the value that was written.
  const typed = written.includes("(") || at !== path ? undefined : written;
  const mayAdd = override.kind === "add" || override.kind === "force";
  const value = takeValue(at, item, { ...context, addProblem, typed, mayAdd });
  if (value === undefined) return;
  const text = `override ${maskOverride(override.text, path)}`;
  const layer: Tree = {};
  setAt(layer, at, value);
  mergeTree(tree, layer, origins, () => ({ level: LEVEL.override, text }));
}

/** A list is set as a whole: `list.0=x` becomes the list with one item replaced. */
function intoList(
  tree: Tree,
  path: string,
  value: YamlValue,
  addProblem: AddProblem,
): { at: string; value: YamlValue } | undefined {
  const keys = splitPath(path);
  const ends = keys.map((_, i) => joinPath(...keys.slice(0, i)));
  const at = ends.find((above) => above !== "" && Array.isArray(getAt(tree, above)));
  if (at === undefined) return { at: path, value };
  const list = structuredClone(getAt(tree, at)) as YamlValue[];
  const place = keys[splitPath(at).length]!;
  if (!/^\d+$/.test(place) || Number(place) >= list.length) {
    const count = `${list.length} item${list.length === 1 ? "" : "s"}`;
    addProblem("error", path, `Cannot set ${path}: the list has ${count}. Write ${at}=[...].`);
    return undefined;
  }
  setAt(list as unknown as Tree, path.slice(at.length + 1), value);
  return { at, value: list };
}

function deleteSetting(override: Override, path: string, context: ApplyContext & { addProblem: AddProblem }): void {
  const { tree, origins, schema, addProblem } = context;
  const old = getAt(tree, path);
  const isDeclared = schema.fields.has(path) || schema.sections.has(path);
  if (old === undefined) {
    addProblem("error", path, `Cannot delete ${path}: it is not set.`);
  } else if (override.value !== undefined && JSON.stringify(old) !== JSON.stringify(override.value)) {
    addProblem(
      "error",
      path,
      `Cannot delete ${path}: its value is not ${showSetting(path, override.value)} (${showSetting(path, old)}).`,
    );
  } else if (isDeclared && (!isClusterBackend(schema.backend) || path.startsWith("rllm."))) {
    addProblem("error", path, `Cannot delete ${path}: the code reads it by name. Set it to another value.`);
  } else if (Array.isArray(getAt(tree, joinPath(...splitPath(path).slice(0, -1))))) {
    addProblem("error", path, `Cannot delete ${path}: it is an item of a list. Set the whole list.`);
  } else {
    forgetOrigins(origins, path, old);
    deleteAt(tree, path);
  }
}
