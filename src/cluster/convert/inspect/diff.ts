/** Compares two configurations by meaning: both are read in verl's names, each with its own system's defaults. */

import { verlLeaves } from "../../../train/config/fields/verl_tree.ts";
import { interpolator } from "../../../train/config/hydra/interpolate.ts";
import type { Problem } from "../../../train/config/problem.ts";
import { showSetting } from "../../../train/config/secret.ts";
import { equalValues, getAt, type Tree, unflatten, type YamlValue } from "../../../train/config/yaml/tree.ts";
import type { ConvertedSource } from "../contract.ts";
import { convert } from "../convert.ts";
import { HOME } from "../values.ts";

export interface SettingDifference {
  /** verl's name of the setting. */
  readonly path: string;
  readonly a: Side;
  readonly b: Side;
}

export interface Side {
  readonly value: YamlValue | undefined;
  /** The names that set it in its own file; none for a default. */
  readonly from: readonly string[];
}

export interface Diff {
  readonly differences: readonly SettingDifference[];
  /** Settings without a counterpart, by their own names, on either side. */
  readonly onlyA: readonly string[];
  readonly onlyB: readonly string[];
  readonly problems: readonly Problem[];
}

export function diffSources(
  a: ConvertedSource,
  b: ConvertedSource,
  readConfig: (name: string) => string | undefined,
): Diff {
  const asVerl = (source: ConvertedSource) => convert(source, { to: "verl", readConfig, pin: true });
  const [left, right] = [asVerl(a), asVerl(b)];
  const leavesOfVerl = [...verlLeaves(readConfig)].map(([path, { value }]) => [path, value] as const);
  const read = defaultReader(unflatten(leavesOfVerl));
  const paths = new Set([...left.values.keys(), ...right.values.keys()]);
  const differences: SettingDifference[] = [];
  for (const path of paths) {
    const side = (values: typeof left.values): Side => {
      const value = values.get(path);
      return value ? { value: value.value, from: value.from } : { value: read(path), from: [] };
    };
    const [x, y] = [side(left.values), side(right.values)];
    if (!equalValues(comparable(x.value), comparable(y.value))) differences.push({ path, a: x, b: y });
  }
  const dropped = (result: typeof left) =>
    result.notes.flatMap(({ kind, from }) => (kind === "dropped" && from ? [from] : []));
  return {
    differences,
    onlyA: dropped(left),
    onlyB: dropped(right),
    problems: [...left.problems, ...right.problems],
  };
}

function defaultReader(defaults: Tree): (path: string) => YamlValue | undefined {
  const { at } = interpolator(defaults, {});
  return (path) => {
    try {
      return at(path);
    } catch {
      return getAt(defaults, path);
    }
  };
}

/** One file and a list of one file are the same; `~` and `$HOME` are the same folder. */
function comparable(value: YamlValue | undefined): YamlValue | undefined {
  if (Array.isArray(value) && value.length === 1) return comparable(value[0]);
  if (Array.isArray(value)) return value.map((item) => comparable(item) as YamlValue);
  return typeof value === "string" ? value.replace(/^~\//, () => `${HOME}/`) : value;
}

/** A difference a line: `data.max_prompt_length: 512 -> 1024`, then the names in the two files where they differ. */
export function formatDiff(diff: Diff, names: { a: string; b: string }): string {
  const lines = diff.differences.map(({ path, a, b }) => {
    const sides = [a, b].map(({ value, from }) => {
      const shown = value === undefined ? "(none)" : showSetting(path, value);
      return from.length === 0 ? `${shown} (default)` : shown;
    });
    const names = [a, b].flatMap(({ from }) => from.filter((name) => name !== path));
    const aliases = names.length > 0 ? `   [${[...new Set(names)].join(", ")}]` : "";
    return `${path}: ${sides[0]} -> ${sides[1]}${aliases}`;
  });
  for (const path of diff.onlyA) lines.push(`only in ${names.a}: ${path}`);
  for (const path of diff.onlyB) lines.push(`only in ${names.b}: ${path}`);
  return lines.length === 0 ? "" : `${lines.join("\n")}\n`;
}
