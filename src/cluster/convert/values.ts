/** Values on their way between systems: lists of sections, the home folder. */
import { isTree, leaves, setAt, type Tree, type YamlValue } from "../../train/config/yaml/tree.ts";

/** A tree of flat paths in which `list.0.key` makes lists. */
export function toTree(values: Iterable<readonly [string, YamlValue]>): Tree {
  const tree: Tree = {};
  for (const [path, value] of values) setAt(tree, path, value);
  return makeLists(tree) as Tree;
}

function makeLists(value: YamlValue): YamlValue {
  if (!isTree(value)) return value;
  const keys = Object.keys(value);
  const isList = keys.length > 0 && keys.every((key) => /^\d+$/.test(key));
  if (isList) return keys.sort((a, b) => Number(a) - Number(b)).map((key) => makeLists(value[key]!));
  return Object.fromEntries(keys.map((key) => [key, makeLists(value[key]!)]));
}

/** The leaves of a value with lists of sections opened: `tasksets.0.path`. */
export function* deepLeaves(path: string, value: YamlValue): Generator<[string, YamlValue]> {
  if (Array.isArray(value) && value.some(isTree)) {
    for (const [i, item] of value.entries()) yield* deepLeaves(`${path}.${i}`, item);
  } else if (isTree(value) && Object.keys(value).length > 0) {
    for (const [key, item] of leaves(value)) yield* deepLeaves(`${path}.${key}`, item);
  } else yield [path, value];
}

/** The home folder as every system here writes it: resolved where the run starts, not where it is converted. */
// biome-ignore lint/suspicious/noTemplateCurlyInString: an interpolation of theirs
export const HOME = "${oc.env:HOME}";

/** `~/x` as an interpolation that the other system understands. */
export function expandHome(value: YamlValue): YamlValue {
  return typeof value === "string" ? value.replace(/^~\//, () => `${HOME}/`) : value;
}

export function valueList(value: YamlValue | undefined): YamlValue[] {
  if (value === undefined || value === null) return [];
  return Array.isArray(value) ? [...value] : [value as YamlValue];
}
