/** Converts between any two systems; Trinity and rLLM convert through verl's names. */

import { isOlderVerl } from "../../train/config/fields/rename.ts";
import { allVerlLeaves, verlLeaves } from "../../train/config/fields/verl_tree.ts";
import { nearestPath, type Problem } from "../../train/config/problem.ts";
import { schemaOf } from "../../train/config/schema.ts";
import type { Tree, YamlValue } from "../../train/config/yaml/tree.ts";
import type { Converted, ConvertedSource, ConvertOptions, Note, OutValue, TrainingSystem } from "./contract.ts";
import { rllmToVerl, verlToRllm } from "./rllm.ts";
import { verlToTrinity } from "./trinity/from_verl.ts";
import { isTrinityPath, TRINITY_ORDER } from "./trinity/order.ts";
import { trinityToVerl } from "./trinity/to_verl.ts";
import { deepLeaves } from "./values.ts";

export interface ConvertRequest extends ConvertOptions {
  readonly to: TrainingSystem;
  readonly readConfig: (name: string) => string | undefined;
}

/** Converts what a source sets. Returns problems, never throws; do not use the values when there is an error. */
export function convert(source: ConvertedSource, { to, readConfig, ...options }: ConvertRequest): Converted {
  const unknown = unknownSettings(source, readConfig);
  const verlDefaults = new Map([...verlLeaves(readConfig)].map(([path, { value }]) => [path, value]));
  const steps: ((from: ConvertedSource, options: ConvertOptions) => Converted)[] = [];
  if (source.system === "rllm" && to !== "rllm") steps.push(rllmToVerl);
  if (source.system === "trinity" && to !== "trinity") steps.push(trinityToVerl);
  if (to === "trinity" && source.system !== "trinity") steps.push(verlToTrinity);
  if (to === "rllm" && source.system !== "rllm") steps.push(verlToRllm);
  if (steps.length === 0) return same(source, options, unknown);
  let current = source;
  let notes: readonly Note[] = source.notes ?? [];
  let problems: readonly Problem[] = unknown;
  let result: Converted | undefined;
  for (const [i, step] of steps.entries()) {
    const isLast = i === steps.length - 1;
    result = step(current, { ...options, verlDefaults, profile: (isLast && options.profile) || new Map() });
    problems = [...problems, ...result.problems];
    notes = joinNotes(notes, result.notes);
    if (isLast) break;
    const values = [...result.values].map(([path, out]) => {
      const origin = source.values.get(out.from[0]!);
      return [
        path,
        { value: out.value, file: origin?.file ?? "", line: origin?.line, comment: origin?.comment },
      ] as const;
    });
    current = { system: "verl", values: new Map(values), problems: [], head: source.head };
  }
  return { values: (result as Converted).values, notes, problems };
}

function same(
  source: ConvertedSource,
  { profile = new Map() }: ConvertOptions,
  problems: readonly Problem[],
): Converted {
  const values = [...source.values].map(([path, { value }]) => [path, { value, from: [path] }] as const);
  const added = [...profile].map(([path, value]) => [path, { value, from: [] }] as const);
  return {
    values: new Map<string, OutValue>([...values, ...added]),
    notes: source.notes ?? [],
    problems: [...source.problems, ...problems],
  };
}

/** Keeps one line per setting over two steps: the second may drop what the first renamed. */
function joinNotes(first: readonly Note[], second: readonly Note[]): Note[] {
  const before = new Map(first.filter((note) => note.to !== undefined).map((note) => [note.to as string, note]));
  const joined = second.map((note) => {
    const names = note.from?.split(" + ").map((name) => before.get(name)?.from ?? name);
    return names === undefined ? note : { ...note, from: [...new Set(names)].join(" + ") };
  });
  return [...first.filter((note) => note.to === undefined), ...joined];
}

function unknownSettings(source: ConvertedSource, readConfig: ConvertRequest["readConfig"]): Problem[] {
  const { isKnown, all: paths } = knownSettings(source.system, readConfig);
  const problems: Problem[] = [];
  for (const [path, { file, line, isAdded }] of source.values) {
    if (isKnown(path) || (isAdded && source.system !== "trinity")) continue;
    const close = nearestPath(path, paths);
    const message = `Cannot find ${path} among ${source.system}'s settings.${close ? ` Did you mean ${close}?` : ""}`;
    problems.push({ severity: "error", message, path, file, line });
  }
  return problems;
}

/** The paths that a system has, of any version that ships here. */
export function knownSettings(
  system: TrainingSystem,
  readConfig: ConvertRequest["readConfig"],
): { isKnown: (path: string) => boolean; all: readonly string[] } {
  if (system === "trinity")
    return { isKnown: isTrinityPath, all: TRINITY_ORDER.filter((path) => !path.includes("[]")) };
  const paths = new Set<string>(["data.response_key"]);
  const open: string[] = [];
  for (const [path, { value }] of allVerlLeaves(readConfig)) {
    paths.add(path);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) open.push(path);
  }
  if (system === "rllm") {
    for (const backend of ["local", "tinker", "verl"] as const) {
      const schema = schemaOf(backend);
      for (const [path, field] of schema.fields) {
        paths.add(path);
        if (field.type === "dict") open.push(path);
      }
      open.push(...schema.openSections);
    }
  }
  const isKnown = (path: string) =>
    paths.has(path) || isOlderVerl(path) || open.some((section) => path.startsWith(`${section}.`));
  return { isKnown, all: [...paths] };
}

/** The part of a profile for one system, flattened: `trinity: {a.b: 1}` or `{a: {b: 1}}`. */
export function readProfile(tree: Tree, system: TrainingSystem): Map<string, YamlValue> {
  const section = tree[system];
  if (section === undefined || section === null) return new Map();
  const flat = [...deepLeaves("", section)].map(([path, value]) => {
    const plain = path
      .slice(1)
      .replaceAll("\\.", ".")
      .replace(/\[(\d+)\]/g, ".$1");
    return [plain, value] as const;
  });
  return new Map(flat);
}
