/** The command line of the benchmarks: their names, and options. */
import { parseArgs } from "node:util";

/** What `algorithms` runs. */
export interface Learning {
  readonly seeds: number;
  readonly tasks: readonly string[];
  readonly presets: readonly string[];
  readonly device: string | undefined;
  /** Folder where the runs' metrics are kept; a run whose metrics are there is not repeated. */
  readonly runs: string | undefined;
}

const FLAGS = {
  json: { type: "boolean" },
  save: { type: "boolean" },
  large: { type: "boolean" },
  kernels: { type: "boolean" },
} as const;
const VALUES = {
  seeds: { type: "string" },
  tasks: { type: "string" },
  presets: { type: "string" },
  device: { type: "string" },
  runs: { type: "string" },
  model: { type: "string" },
} as const;
/** The benchmark that takes an option with a value. */
const ownerOf = (option: string) => (option === "model" ? "peers" : "algorithms");

/** The benchmarks that are named. @throws {Error} for an unknown option, and for one without effect on them. */
export function namedBenches(args: readonly string[]): readonly string[] {
  const { values, positionals } = parse(args);
  const foreign = Object.keys(VALUES).find((name) => name in values && positionals.join() !== ownerOf(name));
  if (foreign !== undefined)
    throw new Error(`Cannot run the benchmarks: --${foreign} is for ${ownerOf(foreign)} alone. Name that one.`);
  return positionals;
}

/** Whether `cost` lists the dispatches of each phase by kernel. */
export function listsKernels(args: readonly string[]): boolean {
  return parse(args).values.kernels === true;
}

/** The model folder that `peers` compares with others on. */
export function peerModel(args: readonly string[]): string | undefined {
  return parse(args).values.model;
}

/** Whether `peers` compares on a model in the shape of Qwen2.5-0.5B, and `limits` takes it on a software adapter. */
export function comparesLarge(args: readonly string[]): boolean {
  return parse(args).values.large === true;
}

/** @throws {Error} for values that `algorithms` does not know. */
export function learningOptions(args: readonly string[], known: Pick<Learning, "tasks" | "presets">): Learning {
  const { values } = parse(args);
  const seeds = Number(values.seeds ?? 5);
  if (!Number.isSafeInteger(seeds) || seeds < 1)
    throw new Error(`Cannot run algorithms: --seeds takes a whole number from 1 (${values.seeds}). Correct it.`);
  const chosen = (name: "tasks" | "presets") => {
    const names = values[name]?.split(",") ?? known[name];
    const unknown = names.find((it) => !known[name].includes(it));
    if (unknown === undefined) return names;
    throw new Error(`Cannot run algorithms: --${name} has ${known[name].join(", ")} (${unknown}). Choose from these.`);
  };
  return { seeds, tasks: chosen("tasks"), presets: chosen("presets"), device: values.device, runs: values.runs };
}

const parse = (args: readonly string[]) =>
  parseArgs({ args: [...args], options: { ...FLAGS, ...VALUES }, allowPositionals: true });
