/**
 * Configuration trees and the dotted paths into them.
 * A list is a leaf: overrides replace it whole, as in Hydra; its items can be read (`a.list.0`), not merged.
 */
import { ConfigError } from "../../../leaves/errors.ts";

export type Scalar = string | number | boolean | null;
export type YamlValue = Scalar | readonly YamlValue[] | Tree;
export interface Tree {
  [key: string]: YamlValue;
}

/** OmegaConf's mark of a setting that must be set before a run. */
export const MANDATORY = "???";

/** True when a value, or anything in it, refers to other settings: `${...}`. */
export function hasInterpolation(value: YamlValue | undefined): boolean {
  if (typeof value === "string") return value.includes("${");
  if (Array.isArray(value)) return value.some(hasInterpolation);
  return isTree(value) ? Object.values(value).some(hasInterpolation) : false;
}

export function isTree(value: unknown): value is Tree {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Splits `a.b[0].c` into its keys. A dot inside a key is written `\.`. */
export function splitPath(path: string): string[] {
  if (!path.includes("\\")) return path.replace(/\[(\d+)\]/g, ".$1").split(".");
  return path
    .replace(/\[(\d+)\]/g, ".$1")
    .split(/(?<!\\)\./)
    .map((key) => key.replaceAll("\\.", "."));
}

export function joinPath(...keys: readonly string[]): string {
  if (keys.length === 1 && !keys[0]!.includes(".")) return keys[0]!;
  return keys.map((key) => (key.includes(".") ? key.replaceAll(".", "\\.") : key)).join(".");
}

/** The value at a path, or undefined. Never follows inherited properties. */
export function getAt(tree: YamlValue | undefined, path: string): YamlValue | undefined {
  let node: YamlValue | undefined = tree;
  if (path === "") return node;
  for (const key of splitPath(path)) {
    if (node === null || typeof node !== "object" || !Object.hasOwn(node, key)) return undefined;
    node = (node as Tree)[key];
  }
  return node;
}

/**
 * Writes a value and creates missing sections. A leaf in the way is replaced by a section.
 *
 * @throws {ConfigError} for a key that would touch the prototype of an object.
 */
export function setAt(tree: Tree, path: string, value: YamlValue): void {
  const keys = splitPath(path);
  let node = tree;
  for (const key of keys.slice(0, -1)) {
    assertPlainKey(key, path);
    const next = Object.hasOwn(node, key) ? node[key] : undefined;
    if (Array.isArray(next)) node = next as unknown as Tree;
    else if (isTree(next)) node = next;
    else node = node[key] = {};
  }
  const last = keys[keys.length - 1]!;
  assertPlainKey(last, path);
  node[last] = value;
}

/** Removes a path; false when it was not there. */
export function deleteAt(tree: Tree, path: string): boolean {
  const keys = splitPath(path);
  const last = keys.pop() as string;
  const parent = keys.length === 0 ? tree : getAt(tree, joinPath(...keys));
  if (!isTree(parent) || !Object.hasOwn(parent, last)) return false;
  delete parent[last];
  return true;
}

/** Every leaf in document order. Empty sections and lists are leaves. */
export function* leaves(tree: Tree, prefix = ""): Generator<[path: string, value: YamlValue]> {
  for (const key of Object.keys(tree)) {
    const path = prefix === "" ? joinPath(key) : `${prefix}.${joinPath(key)}`;
    const value = tree[key]!;
    if (isTree(value) && Object.keys(value).length > 0) yield* leaves(value, path);
    else yield [path, value];
  }
}

export function flatten(tree: Tree): Map<string, YamlValue> {
  return new Map(leaves(tree));
}

export function unflatten(entries: Iterable<readonly [string, YamlValue]>): Tree {
  const tree: Tree = {};
  for (const [path, value] of entries) setAt(tree, path, value);
  return tree;
}

/** Equality of meaning: `1` and `1.0` are one number, key order does not count. */
export function equalValues(a: YamlValue | undefined, b: YamlValue | undefined): boolean {
  if (Object.is(a, b) || a === b) return true;
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((item, i) => equalValues(item, b[i]));
  }
  if (!isTree(a) || !isTree(b)) return false;
  const keys = Object.keys(a);
  return (
    keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && equalValues(a[key], b[key]))
  );
}

function assertPlainKey(key: string, path: string): void {
  if (key === "__proto__") throw new ConfigError("Cannot use __proto__ as a setting. Rename the key.", { path });
}
