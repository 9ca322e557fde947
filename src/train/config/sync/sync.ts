/**
 * Keeps a backend's own settings and the portable ones equal.
 *
 * The one rule, per shared setting: the side whose value comes from the higher level wins and is mirrored to the
 * other; at the same level the portable side wins. Null has no opinion unless it is an override; `???` never has one.
 * Levels: verl's tree < base.yaml < backend yaml < your files < your overrides (layer.ts). For verl this is
 * exactly the published order: rllm on the command line, verl on the command line, rllm's default, verl's default.
 */
import { type Env, interpolator } from "../hydra/interpolate.ts";
import type { Problem } from "../problem.ts";
import { showSetting } from "../secret.ts";
import { forgetOrigins, LEVEL, levelAt, type Origins, originOf } from "../yaml/layer.ts";
import { equalValues, getAt, MANDATORY, setAt, type Tree, type YamlValue } from "../yaml/tree.ts";
import type { SharedKey } from "./tables.ts";

/** A configuration while it is being reconciled. */
export interface Draft {
  readonly tree: Tree;
  readonly origins: Origins;
  readonly warnings: Problem[];
  /** The value at a path, interpolations resolved; undefined when there is none or it cannot be resolved yet. */
  read(path: string): YamlValue | undefined;
  /** 4 for an override, 3 for a file of the user's, lower for defaults, -1 when nothing is there. */
  level(path: string): number;
  isExplicit(path: string): boolean;
  /** Explicit, and not mirrored from another path. */
  isTyped(path: string): boolean;
  /** Copies a value and records its origin; a value that is there already keeps its own. */
  mirror(value: YamlValue, from: string, to: string): void;
  /** The same, but the origin moves in any case: a default that is typed elsewhere is no default any more. */
  move(value: YamlValue, from: string, to: string): void;
  warn(message: string, about: string): void;
}

export function draftOf(tree: Tree, origins: Origins, env: Env): Draft {
  const warnings: Problem[] = [];
  const { at } = interpolator(tree, env);
  const level = (path: string) => levelAt(tree, origins, path);
  const move = (value: YamlValue, from: string, to: string) => {
    const source = originOf(origins, from);
    forgetOrigins(origins, to, getAt(tree, to));
    setAt(tree, to, value);
    const text = source?.from === undefined ? `${from} (${source?.text ?? "default"})` : source.text;
    origins.set(to, { ...source, level: source?.level ?? LEVEL.base, text, from });
  };
  return {
    tree,
    origins,
    warnings,
    level,
    isExplicit: (path) => level(path) >= LEVEL.file,
    isTyped: (path) => level(path) >= LEVEL.file && originOf(origins, path)?.from === undefined,
    read(path) {
      try {
        return at(path);
      } catch {
        return undefined;
      }
    },
    move,
    mirror(value, from, to) {
      if (from === to || !equalValues(getAt(tree, to), value)) move(value, from, to);
    },
    warn(message, about) {
      const origin = originOf(origins, about);
      warnings.push({ severity: "warning", message, path: about, file: origin?.file, line: origin?.line });
    },
  };
}

export interface SyncOptions {
  /** verl's own paths still work, with a warning for each that the user set. */
  readonly nativeIsDeprecated?: boolean;
  /** Only an override makes a portable setting that base.yaml lacks (top_k): a default or a file leaves it out. */
  readonly onlyTypedMakes?: boolean;
  /** The native form of a portable value, where it differs: values that mean the same are no conflict. */
  readonly asNative?: (value: YamlValue | undefined) => YamlValue;
}

export function syncShared(draft: Draft, rows: readonly SharedKey[], options: SyncOptions = {}): void {
  for (const row of rows) syncRow(draft, row, options);
}

/** @returns the side that decided, where one did. */
export function syncRow(draft: Draft, row: SharedKey, options: SyncOptions = {}): "rllm" | "native" | undefined {
  const { native, rllm } = row;
  const [ours, theirs] = [draft.read(rllm), draft.read(native)];
  // This version of the backend lacks the setting.
  if (theirs === undefined && getAt(draft.tree, native) === undefined) return undefined;
  const [ourLevel, theirLevel] = [draft.level(rllm), draft.level(native)];
  const speaks = (value: YamlValue | undefined, level: number) =>
    value !== undefined && value !== MANDATORY && (value !== null || level >= LEVEL.override);
  const nativeSpeaks = speaks(theirs, theirLevel) && (!row.onlyExplicit || draft.isExplicit(native));
  // A mandatory native setting is never filled by a portable default.
  const fillsMandatory = theirs === MANDATORY && !draft.isExplicit(rllm);
  const rllmSpeaks = speaks(ours, ourLevel) && !fillsMandatory;
  if (draft.isExplicit(native) && theirs !== MANDATORY) warnNative(draft, row, options);
  if (rllmSpeaks && (!nativeSpeaks || ourLevel >= theirLevel)) {
    draft.mirror(ours as YamlValue, rllm, native);
    return "rllm";
  }
  const isNew = options.onlyTypedMakes && ours === undefined && theirLevel < LEVEL.override;
  if (nativeSpeaks && theirLevel > ourLevel && !isNew) {
    draft.mirror(theirs as YamlValue, native, rllm);
    return "native";
  }
  return undefined;
}

/** Warns when a native path is deprecated, or when both paths are set to different values. */
export function warnNative(draft: Draft, row: SharedKey, options: SyncOptions): void {
  const { native, rllm } = row;
  const { nativeIsDeprecated = false, asNative = (value) => value } = options;
  const [ours, theirs] = [draft.read(rllm), draft.read(native)];
  const isSame = equalValues(asNative(ours), theirs);
  // A name of the local backend's that was typed has reached verl's by now.
  const named = originOf(draft.origins, native)?.from ?? native;
  const isFromFile = (path: string) => draft.level(path) === LEVEL.file;
  // A file with both names, like the output of `config show`, needs no warning.
  if (isFromFile(native) && isFromFile(rllm) && (ours === null || isSame)) return;
  if (draft.isExplicit(rllm) && !isSame) {
    const [winner, value, other] =
      draft.level(rllm) >= draft.level(native) ? [rllm, ours, theirs] : [named, theirs, ours];
    draft.warn(
      `${named} conflicts with ${rllm}; using ${winner}=${showSetting(winner, value)}, not ${showSetting(winner, other)}`,
      named,
    );
  } else if (nativeIsDeprecated && named === native) {
    draft.warn(
      `Verl-native shared config ${native} is deprecated (set to ${showSetting(native, theirs)}); ` +
        `use ${rllm}=${showSetting(native, theirs)} instead`,
      native,
    );
  }
}
