/** `grpu config convert`: one system's configuration as another's. */

import {
  type ConvertedSource,
  type ConvertOptions,
  type Note,
  SYSTEMS,
  type TrainingSystem,
} from "../../cluster/convert/contract.ts";
import type { SourceFile } from "../../cluster/convert/source/read.ts";
import { ConfigError } from "../../leaves/errors.ts";
import type { YamlValue } from "../../train/config/yaml/tree.ts";
import { splitArguments } from "../../train/run/arguments.ts";
import { packagedText, writeText } from "../../train/run/files.ts";
import type { Command, Input, Io } from "../command.ts";
import { EXIT_CONFIG } from "../process/exit.ts";
import { printErrors, readInput, SHELL, shellOptions, toSource } from "./config_sources.ts";

export const convertCommand: Command = {
  path: "config convert",
  summary: "convert a configuration between verl, rLLM and Trinity-RFT",
  args: "<IN ...> [key=value ...]",
  options: [
    {
      flag: "--from",
      value: "SYSTEM",
      describe: "the system it is written for",
      choices: SYSTEMS,
      required: true,
    },
    { flag: "--to", value: "SYSTEM", describe: "the system to write for", choices: SYSTEMS, required: true },
    {
      flag: "--out",
      value: "FILE",
      describe: "output file; its ending (.yaml, .sh, .args) decides the form",
    },
    { flag: "--format", value: "NAME", describe: "form of the output", choices: ["yaml", "args"] },
    {
      flag: "--profile",
      value: "FILE",
      describe: "YAML with values that the input lacks: {trinity: {path: value}}",
    },
    {
      flag: "--report",
      value: "FILE",
      describe: "write settings without a counterpart to FILE, a profile for the conversion back",
    },
    {
      flag: "--target",
      value: "NAME",
      describe: "Trinity's config builder",
      choices: ["legacy", "new"],
      default: "legacy",
    },
    {
      flag: "--cadence",
      value: "NAME",
      describe: "copy steps, or scale them by sync_interval",
      choices: ["copy", "scale"],
      default: "copy",
    },
    ...SHELL,
    { flag: "--pin-defaults", describe: "write settings whose default differs in the other system" },
    { flag: "--verbose", describe: "report every setting" },
  ],
  examples: [
    "grpu config convert --from verl --to trinity run_grpo.sh --profile cluster.yaml --out grpo.yaml",
    "grpu config convert --from trinity --to verl grpo.yaml --out run.args --report back.yaml",
    "grpu config convert --from rllm --to verl run.yaml rllm.rollout.n=4",
  ],
  notes:
    "IN is YAML, a file of key=value lines, a shell script, or - for standard input; a later one overrides an earlier one.",
  run: convertFiles,
};

async function convertFiles({ args, options }: Input, io: Io): Promise<number> {
  const { convert } = await import("../../cluster/convert/convert.ts");
  const { files, overrides } = splitArguments(args);
  if (args.length === 0) throw new ConfigError("Cannot convert: no file is given. Name one, or - for standard input.");
  const inputs = await Promise.all(files.map((name) => readInput(name, io)));
  if (overrides.length > 0) inputs.push({ name: "command line.args", text: overrides.join("\n") });
  const [from, to] = [options.from as TrainingSystem, options.to as TrainingSystem];
  const source = await toSource(inputs, from, shellOptions(options));
  const profile = await readProfileFile(options.profile, to, io);
  const conversion: ConvertOptions = {
    profile,
    target: options.target === "new" ? "new" : "legacy",
    cadence: options.cadence === "scale" ? "scale" : "copy",
    pin: options.pinDefaults === true,
  };
  const result = convert(source, { ...conversion, to, readConfig: packagedText });
  if (await printErrors(result.problems, io)) return EXIT_CONFIG;
  await report(result.notes, { options, from, to, io });
  const text = await written({ from, to, inputs, source, values: result.values, options });
  if (options.out) writeText(String(options.out), text, "configuration");
  else io.out(text);
  return 0;
}

interface Writing {
  readonly from: TrainingSystem;
  readonly to: TrainingSystem;
  readonly inputs: readonly SourceFile[];
  readonly source: ConvertedSource;
  readonly values: ReadonlyMap<string, { readonly value: YamlValue; readonly from: readonly string[] }>;
  readonly options: Input["options"];
}

/** One YAML file with overrides keeps its form; everything else is written from its values. */
async function written({ from, to, inputs, source, values, options }: Writing): Promise<string> {
  const { rewriteYaml, writeArgs, writeYaml } = await import("../../cluster/convert/write.ts");
  const isArgs = options.format === "args" || /\.(args|sh|txt)$/.test(String(options.out ?? ""));
  const isInYaml = inputs.some(({ name }) => /\.ya?ml$/.test(name));
  if (isArgs || (options.format === undefined && !options.out && to === "verl" && !isInYaml))
    return writeArgs(values, source);
  const [first] = inputs;
  if (from === to && first && /\.ya?ml$/.test(first.name)) {
    const changed = [...values].filter(([path]) => source.values.get(path)?.file !== first.name);
    return rewriteYaml(
      first.text,
      changed.map(([path, { value }]) => [path, value] as const),
    );
  }
  return writeYaml(values, { system: to, source });
}

async function readProfileFile(
  file: unknown,
  system: TrainingSystem,
  io: Io,
): Promise<Required<ConvertOptions>["profile"]> {
  if (file === undefined) return new Map();
  const [{ readYaml }, { readProfile }] = await Promise.all([
    import("../../train/config/yaml/read.ts"),
    import("../../cluster/convert/convert.ts"),
  ]);
  const { name, text } = await readInput(String(file), io);
  const { tree, problems } = readYaml(text, name);
  if (problems.length > 0) throw new ConfigError(problems[0]!.message, { file: name, line: problems[0]!.line });
  return readProfile(tree, system);
}

interface Reporting {
  readonly options: Input["options"];
  readonly from: TrainingSystem;
  readonly to: TrainingSystem;
  readonly io: Io;
}

/** Kinds of notes that are reported without --verbose: everything but plain renames. */
const REPORTED: readonly Note["kind"][] = ["computed", "dropped", "default differs", "check"];

async function report(notes: readonly Note[], { options, from, to, io }: Reporting): Promise<void> {
  const { formatNote, writeProfile } = await import("../../cluster/convert/notes.ts");
  for (const note of notes) {
    if (options.verbose === true || REPORTED.includes(note.kind)) io.err(`${formatNote(note)}\n`);
  }
  if (options.report) writeText(String(options.report), writeProfile(notes, { from, to }), "report");
}
