/**
 * Layers of a configuration and the one precedence rule: a value of a higher level wins; within a level the later
 * layer wins. Each value remembers where it came from.
 */
import type { Problem } from "../problem.ts";
import { readYaml } from "./read.ts";
import { readPlain } from "./read_plain.ts";
import { getAt, isTree, joinPath, setAt, type Tree, type YamlValue } from "./tree.ts";

export const LEVEL = { native: 0, base: 1, backend: 2, file: 3, override: 4 } as const;
export type Level = (typeof LEVEL)[keyof typeof LEVEL];

export interface Origin {
  readonly level: Level;
  /** Place for people: `config/rllm/base.yaml:12`, `override rllm.rollout.n=4`. */
  readonly text: string;
  readonly file?: string;
  readonly line?: number | undefined;
  /** The setting whose value was mirrored here. */
  readonly from?: string;
}

export type Origins = Map<string, Origin>;

export interface ConfigLayer {
  readonly file: string;
  readonly level: Level;
  readonly tree: Tree;
  readonly lines: ReadonlyMap<string, number>;
  readonly problems: readonly Problem[];
  readonly defaults: readonly DefaultEntry[];
  /** Keys that the file adds, as `+key` does on the command line. */
  readonly added?: readonly string[] | undefined;
}

/** An entry of a defaults list. */
export type DefaultEntry =
  | { readonly kind: "self" }
  | { readonly kind: "file"; readonly name: string }
  | { readonly kind: "group"; readonly group: string; readonly choice: string };

/** Reads one file and mounts it at its package: the `# @package` line, else the caller's `mount`. */
export function readLayer(
  text: string,
  about: { file: string; level: Level; mount?: string | undefined },
): ConfigLayer {
  const { file, level } = about;
  const read = (level < LEVEL.file ? readPlain(text) : undefined) ?? readYaml(text, file);
  const problems = [...read.problems];
  const { defaults: list, ...rest } = read.tree;
  const defaults = readDefaults(list, (message) => {
    problems.push({ severity: "error", message, file, line: read.lines.get("defaults") });
  });
  const declared = read.package === "_global_" ? "" : read.package;
  const mount = declared ?? about.mount ?? "";
  const { added } = read;
  if (mount === "") return { file, level, tree: rest, lines: read.lines, problems, defaults, added };
  const tree: Tree = {};
  setAt(tree, mount, rest);
  const lines = new Map([...read.lines].map(([path, line]) => [`${mount}.${path}`, line]));
  return { file, level, tree, lines, problems, defaults };
}

function readDefaults(list: YamlValue | undefined, fail: (message: string) => void): DefaultEntry[] {
  if (list === undefined) return [];
  if (!Array.isArray(list)) {
    fail("Cannot read defaults: it is not a list.");
    return [];
  }
  const entries: DefaultEntry[] = [];
  for (const item of list as readonly YamlValue[]) {
    if (item === "_self_") entries.push({ kind: "self" });
    else if (typeof item === "string") entries.push({ kind: "file", name: item });
    else if (isTree(item) && Object.keys(item).length === 1) {
      const [key] = Object.keys(item);
      const group = key!
        .replace(/^(override|optional)\s+/, "")
        .replace(/^\//, "")
        .replace(/@_global_$/, "");
      entries.push({ kind: "group", group, choice: String(item[key!]) });
    } else fail(`Cannot read an entry of defaults: it is neither a file nor a group (${JSON.stringify(item)}).`);
  }
  return entries;
}

/** Lays one tree over another and records the origin of every leaf that it sets. */
export function mergeTree(into: Tree, from: Tree, origins: Origins, originOf: (path: string) => Origin): void {
  const merge = (target: Tree, source: Tree, prefix: string) => {
    for (const key of Object.keys(source)) {
      const path = prefix === "" ? joinPath(key) : `${prefix}.${joinPath(key)}`;
      const value = source[key]!;
      const old = Object.hasOwn(target, key) ? target[key] : undefined;
      if (isTree(value) && isTree(old) && Object.keys(value).length > 0) {
        if (Object.keys(old).length === 0) origins.delete(path);
        merge(old, value, path);
      } else if (isTree(value) && isTree(old)) {
        // An empty mapping adds nothing.
      } else place(target, key, value, path);
    }
  };
  const place = (target: Tree, key: string, value: YamlValue, path: string) => {
    forgetOrigins(origins, path, target[key]);
    if (isTree(value) && Object.keys(value).length > 0) {
      target[key] = {};
      merge(target[key] as Tree, value, path);
    } else {
      target[key] = isTree(value) ? {} : value;
      origins.set(path, originOf(path));
    }
  };
  merge(into, from, "");
}

/** The origin of a setting that a file holds. */
export function originInFile(
  { file, lines, level }: Pick<ConfigLayer, "file" | "lines" | "level">,
  path: string,
): Origin {
  const line = lineOf(lines, path);
  return { level, text: line ? `${file}:${line}` : file, file, line };
}

/** Removes the origins of a value that is about to be replaced. */
export function forgetOrigins(origins: Origins, path: string, old: YamlValue | undefined): void {
  origins.delete(path);
  if (!isTree(old) || Object.keys(old).length === 0) return;
  for (const key of [...origins.keys()]) if (key.startsWith(`${path}.`)) origins.delete(key);
}

/** The line of a path, or of the closest section around it. */
export function lineOf(lines: ReadonlyMap<string, number>, path: string): number | undefined {
  for (let end = path.length; end > 0; end = path.lastIndexOf(".", end - 1)) {
    const line = lines.get(path.slice(0, end));
    if (line !== undefined) return line;
  }
  return undefined;
}

/** The origin of a path, or of the value around or under it. */
export function originOf(origins: Origins, path: string): Origin | undefined {
  for (let end = path.length; end > 0; end = path.lastIndexOf(".", end - 1)) {
    const origin = origins.get(path.slice(0, end));
    if (origin !== undefined) return origin;
  }
  return undefined;
}

/** The level of the value at a path (of a section: the highest), -1 if there is none. */
export function levelAt(tree: Tree, origins: Origins, path: string): number {
  const value = getAt(tree, path);
  if (value === undefined) return -1;
  let level: number = originOf(origins, path)?.level ?? LEVEL.native;
  if (isTree(value)) {
    for (const [key, origin] of origins) if (key.startsWith(`${path}.`)) level = Math.max(level, origin.level);
  }
  return level;
}
