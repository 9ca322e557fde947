/** `grpu config ...`: show, validate, explain, compare and convert configurations. */
import type { ConvertOptions, Note } from "../config/convert/build.ts";
import type { ShellOptions } from "../config/convert/shell/read.ts";
import type { Source, SourceFile, System } from "../config/convert/source.ts";
import type { Problem } from "../config/problem.ts";
import { ConfigError } from "../errors.ts";
import type { Command, Input, Io, Option } from "./command.ts";
import { EXIT_CONFIG } from "./exit.ts";
import { locate, packagedText, readText, textOf, writeText } from "./files.ts";

const SYSTEMS = ["verl", "rllm", "trinity"];

/** How `composeConfig` reads files on this machine: the package's own, and the user's. */
export function configFiles(): {
  readConfig(name: string): string | undefined;
  readFile(path: string): string | undefined;
} {
  return { readConfig: packagedText, readFile: userText };
}

/** Text of a user's file; undefined where there is none, or a folder. */
function userText(path: string): string | undefined {
  try {
    return textOf(locate(path));
  } catch {
    return undefined;
  }
}

/** Splits positional arguments into files and overrides: an override has a `=` or starts with `~`. */
export function splitArguments(args: readonly string[]): { files: string[]; overrides: string[] } {
  const isOverride = (arg: string) => arg.includes("=") || arg.startsWith("~");
  return { files: args.filter((arg) => !isOverride(arg)), overrides: args.filter(isOverride) };
}

const CONFIG: Option = {
  flag: "--config",
  value: "FILE",
  describe: "YAML laid over the defaults; may repeat",
  repeat: true,
};
const SHELL: readonly Option[] = [
  {
    flag: "--env",
    value: "NAME=VALUE",
    describe: "environment that a shell script reads; may repeat",
    repeat: true,
  },
  { flag: "--arg", value: "VALUE", describe: "$1, $2, ... of a shell script; may repeat", repeat: true },
];
const FORMAT: Option = {
  flag: "--format",
  value: "NAME",
  describe: "how to print",
  choices: ["yaml", "json"],
  default: "yaml",
};

export const commands: readonly Command[] = [
  {
    path: "config show",
    summary: "print the whole configuration, composed and resolved",
    args: "[config.yaml] [key=value ...]",
    options: [
      CONFIG,
      FORMAT,
      { flag: "--origin", describe: "say where each value came from" },
      { flag: "--section", value: "PATH", describe: "only this section or setting" },
      {
        flag: "--allow-unsupported",
        describe: "warn of settings that the backend cannot honour, instead of refusing",
      },
    ],
    examples: [
      "grpu config show",
      "grpu config show rllm/backend=verl rllm.algorithm.kl_beta=0.01 --origin",
      "grpu config show --config run.yaml --section rllm.algorithm",
    ],
    notes:
      "Later wins: defaults, backend, files, overrides. Secrets are masked; unset mandatory settings show as ???.",
    run: show,
  },
  {
    path: "config validate",
    summary: "check files; tells every problem with its line",
    args: "<FILE ...> [key=value ...]",
    options: [
      {
        flag: "--system",
        value: "NAME",
        describe: "whose configuration it is (else guessed)",
        choices: SYSTEMS,
      },
      ...SHELL,
    ],
    examples: [
      "grpu config validate run.yaml",
      "grpu config validate run.yaml rllm/backend=tinker rllm.rollout.n=4",
      "grpu config validate --system verl train.sh",
    ],
    notes: "Overrides are laid over each file, as grpu train lays them.",
    run: validate,
  },
  {
    path: "config explain",
    summary: "type, default, meaning, other names and support of a setting, or what is in a section",
    args: "<KEY> [config.yaml] [key=value ...]",
    options: [CONFIG, { flag: "--json", describe: "print JSON" }],
    examples: [
      "grpu config explain rllm.rollout.n",
      "grpu config explain rllm.rollout.n run.yaml rllm/backend=tinker",
      "grpu config explain buffer.batch_size",
    ],
    notes: "With files or overrides, also the value that a run with them has, and where it comes from.",
    run: explain,
  },
  {
    path: "config diff",
    summary: "compare two configurations by meaning, across systems",
    args: "<A> <B>",
    options: [
      {
        flag: "--system-a",
        value: "NAME",
        describe: "whose configuration A is (else guessed)",
        choices: SYSTEMS,
      },
      {
        flag: "--system-b",
        value: "NAME",
        describe: "whose configuration B is (else guessed)",
        choices: SYSTEMS,
      },
      ...SHELL,
    ],
    examples: ["grpu config diff verl.sh trinity.yaml"],
    notes: "Exits with 0 when both mean the same, with 1 otherwise.",
    run: diff,
  },
  {
    path: "config convert",
    summary: "convert a configuration between verl, rLLM and Trinity-RFT",
    args: "<IN ...> [key=value ...]",
    options: [
      {
        flag: "--from",
        value: "SYSTEM",
        describe: "whose configuration it is",
        choices: SYSTEMS,
        required: true,
      },
      { flag: "--to", value: "SYSTEM", describe: "whose to write", choices: SYSTEMS, required: true },
      { flag: "--out", value: "FILE", describe: "output; .yaml, .sh or .args decide the form" },
      { flag: "--format", value: "NAME", describe: "form of the output", choices: ["yaml", "args"] },
      {
        flag: "--profile",
        value: "FILE",
        describe: "YAML with values that have no source: {trinity: {path: value}}",
      },
      {
        flag: "--report",
        value: "FILE",
        describe: "write what had no counterpart, as a profile for the way back",
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
      { flag: "--pin-defaults", describe: "write down what has another default in the other system" },
      { flag: "--verbose", describe: "tell about every setting" },
    ],
    examples: [
      "grpu config convert --from verl --to trinity run_grpo.sh --profile cluster.yaml --out grpo.yaml",
      "grpu config convert --from trinity --to verl grpo.yaml --out run.args --report back.yaml",
      "grpu config convert --from rllm --to verl run.yaml rllm.rollout.n=4",
    ],
    notes:
      "IN is YAML, a file of key=value lines, a shell script, or - for standard input; several are laid over each other.",
    run: convertFiles,
  },
  {
    path: "config support",
    summary: "what each backend does with each setting",
    options: [
      {
        flag: "--backend",
        value: "NAME",
        describe: "only this one",
        choices: ["local", "tinker", "verl", "trinity"],
      },
      { flag: "--json", describe: "print JSON" },
    ],
    examples: ["grpu config support", "grpu config support --backend tinker"],
    run: support,
  },
];

async function show({ args, options }: Input, io: Io): Promise<number> {
  const [{ tryCompose }, { showConfig }, { setAt, getAt }] = await Promise.all([
    import("../config/compose.ts"),
    import("../config/show.ts"),
    import("../config/tree.ts"),
  ]);
  const { files, overrides } = splitArguments(args);
  const attempt = tryCompose({
    ...configFiles(),
    files: [...asList(options.config), ...files],
    overrides,
    env: io.env,
    allowMissing: true,
    allowUnsupported: options.allowUnsupported === true,
  });
  if (await tell(attempt.problems, attempt.warnings, io)) return EXIT_CONFIG;
  const section = options.section === undefined ? undefined : String(options.section);
  let config = attempt.config;
  if (section !== undefined) {
    const value = getAt(config, section);
    if (value === undefined) throw new ConfigError(`Cannot show ${section} as there is no such section`);
    config = {};
    setAt(config, section, value);
  }
  const format = options.format === "json" ? "json" : "yaml";
  io.out(showConfig(config, { format, origins: options.origin === true ? attempt.origins : undefined }));
  return 0;
}

/** Prints problems and warnings for people. @returns whether there was an error. */
async function tell(problems: readonly Problem[], warnings: readonly Problem[], io: Io): Promise<boolean> {
  const { formatProblem } = await import("../config/problem.ts");
  for (const problem of [...problems, ...warnings]) io.err(`${formatProblem(problem)}\n`);
  if (problems.length > 1) io.err(`${problems.length} problems\n`);
  return problems.length > 0;
}

async function validate({ args, options }: Input, io: Io): Promise<number> {
  const { validateFile } = await import("../config/validate.ts");
  const { formatProblem } = await import("../config/problem.ts");
  const { files, overrides } = splitArguments(args);
  if (args.length === 0)
    throw new ConfigError("Cannot validate: no file is given. Name one, or - for standard input");
  const system = options.system as System | undefined;
  const shared = { ...configFiles(), env: io.env, system, overrides, shell: shellOptions(options) };
  let errors = 0;
  for (const name of files.length === 0 ? [undefined] : files) {
    const file = name === undefined ? undefined : await readInput(name, io);
    const result = validateFile(file, shared);
    const shown = file?.name ?? "overrides";
    for (const problem of result.problems)
      io.out(`${formatProblem({ ...problem, file: problem.file ?? shown })}\n`);
    const count = result.problems.filter(({ severity }) => severity === "error").length;
    io.err(
      `${shown}: ${result.system}, ${count === 0 ? "no errors" : count === 1 ? "1 error" : `${count} errors`}\n`,
    );
    errors += count;
  }
  return errors === 0 ? 0 : EXIT_CONFIG;
}

/** `--env` and `--arg`. */
function shellOptions(options: Input["options"]): ShellOptions {
  const env = asList(options.env).map((pair): [string, string] => {
    const match = /^([A-Za-z_]\w*)=([\s\S]*)$/.exec(pair);
    if (match === null) throw new ConfigError(`Cannot read --env: ${pair}. Write NAME=VALUE`);
    return [match[1], match[2]];
  });
  return { env: new Map(env), args: asList(options.arg) };
}

async function explain({ args, options }: Input, io: Io): Promise<number> {
  const { explainSetting, formatExplanation, formatSection, nearestSetting } = await import(
    "../config/explain.ts"
  );
  const { readConfig } = configFiles();
  const { files, overrides } = splitArguments(args);
  const key = files.shift();
  if (key === undefined)
    throw new ConfigError("Cannot explain as no setting is given: name one, for instance rllm.rollout.n");
  const about = explainSetting(key, readConfig);
  if (about === undefined && formatSection(key) !== "") {
    io.out(formatSection(key));
    return 0;
  }
  if (about === undefined) {
    const close = nearestSetting(key, readConfig);
    throw new ConfigError(
      `Cannot explain ${key} as there is no such setting${close ? `; nearest: ${close}` : ""}`,
    );
  }
  const layers = { files: [...asList(options.config), ...files], overrides };
  const value = layers.files.length + overrides.length > 0 ? await valueIn(key, layers, io) : undefined;
  if (value === "refused") return EXIT_CONFIG;
  const told = value === undefined ? about : { ...about, value };
  io.out(options.json === true ? `${JSON.stringify(told, null, 2)}\n` : formatExplanation(told));
  return 0;
}

/** The value of a setting in a run with these files and overrides, and where it comes from. */
async function valueIn(
  key: string,
  layers: { readonly files: readonly string[]; readonly overrides: readonly string[] },
  io: Io,
): Promise<import("../config/explain.ts").Explanation["value"] | "refused"> {
  const [{ tryCompose }, { valueInRun }] = await Promise.all([
    import("../config/compose.ts"),
    import("../config/explain.ts"),
  ]);
  const attempt = tryCompose({ ...configFiles(), ...layers, env: io.env, allowMissing: true });
  if (await tell(attempt.problems, attempt.warnings, io)) return "refused";
  return valueInRun(key, attempt);
}

async function diff({ args, options }: Input, io: Io): Promise<number> {
  const { diffSources, formatDiff } = await import("../config/diff.ts");
  if (args.length !== 2)
    throw new ConfigError(`Cannot compare as two files are needed: ${args.length} given`);
  const [a, b] = [await readInput(args[0], io), await readInput(args[1], io)];
  const shell = shellOptions(options);
  const left = await toSource([a], options.systemA as System | undefined, shell);
  const right = await toSource([b], options.systemB as System | undefined, shell);
  const result = diffSources(left, right, configFiles().readConfig);
  if (
    await tell(
      result.problems.filter(({ severity }) => severity === "error"),
      [],
      io,
    )
  )
    return EXIT_CONFIG;
  const text = formatDiff(result, { a: a.name, b: b.name });
  io.out(text);
  if (text === "") io.err("the same\n");
  return text === "" ? 0 : 1;
}

async function toSource(
  files: readonly SourceFile[],
  system?: System,
  shell?: ShellOptions,
): Promise<Source> {
  const [{ readSource }, { detectSystem }] = await Promise.all([
    import("../config/convert/source.ts"),
    import("../config/validate.ts"),
  ]);
  const source = readSource(files, system ?? "verl", shell);
  return { ...source, system: system ?? detectSystem(source.values.keys()) };
}

async function readInput(name: string, io: Io): Promise<SourceFile> {
  if (name === "-") return { name: "standard input", text: await io.stdin() };
  return { name, text: userText(name) ?? readText(name, "configuration") };
}

async function convertFiles({ args, options }: Input, io: Io): Promise<number> {
  const { convert } = await import("../config/convert/convert.ts");
  const { files, overrides } = splitArguments(args);
  if (args.length === 0)
    throw new ConfigError("Cannot convert as no file is given: name one, or - for standard input");
  const inputs = await Promise.all(files.map((name) => readInput(name, io)));
  if (overrides.length > 0) inputs.push({ name: "command line.args", text: overrides.join("\n") });
  const [from, to] = [options.from as System, options.to as System];
  const source = await toSource(inputs, from, shellOptions(options));
  const profile = await readProfileFile(options.profile, to, io);
  const conversion: ConvertOptions = {
    profile,
    target: options.target === "new" ? "new" : "legacy",
    cadence: options.cadence === "scale" ? "scale" : "copy",
    pin: options.pinDefaults === true,
  };
  const result = convert(source, { ...conversion, to, readConfig: configFiles().readConfig });
  if (
    await tell(
      result.problems.filter(({ severity }) => severity === "error"),
      [],
      io,
    )
  )
    return EXIT_CONFIG;
  await report(result.notes, { options, from, to, io });
  const text = await written({ from, to, inputs, source, values: result.values, options });
  if (options.out) writeText(String(options.out), text, "configuration");
  else io.out(text);
  return 0;
}

interface Writing {
  readonly from: System;
  readonly to: System;
  readonly inputs: readonly SourceFile[];
  readonly source: Source;
  readonly values: ReadonlyMap<
    string,
    { readonly value: import("../config/tree.ts").Value; readonly from: readonly string[] }
  >;
  readonly options: Input["options"];
}

/** One YAML file with overrides keeps its form; everything else is written anew. */
async function written({ from, to, inputs, source, values, options }: Writing): Promise<string> {
  const { rewriteYaml, writeArgs, writeYaml } = await import("../config/convert/write.ts");
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

async function readProfileFile(file: unknown, system: System, io: Io): Promise<ConvertOptions["profile"]> {
  if (file === undefined) return new Map();
  const [{ readYaml }, { readProfile }] = await Promise.all([
    import("../config/read.ts"),
    import("../config/convert/convert.ts"),
  ]);
  const { name, text } = await readInput(String(file), io);
  const { tree, problems } = readYaml(text, name);
  if (problems.length > 0) throw new ConfigError(problems[0].message, { file: name, line: problems[0].line });
  return readProfile(tree, system);
}

interface Reporting {
  readonly options: Input["options"];
  readonly from: System;
  readonly to: System;
  readonly io: Io;
}

/** What is told without --verbose: everything but plain renames. */
const TOLD: readonly Note["kind"][] = ["computed", "dropped", "default differs", "check"];

async function report(notes: readonly Note[], { options, from, to, io }: Reporting): Promise<void> {
  const { formatNote, writeReport } = await import("../config/convert/report.ts");
  for (const note of notes) {
    if (options.verbose === true || TOLD.includes(note.kind)) io.err(`${formatNote(note)}\n`);
  }
  if (options.report) writeText(String(options.report), writeReport(notes, { from, to }), "report");
}

async function support({ options }: Input, io: Io): Promise<number> {
  const { SUPPORT, TARGETS, TRAINS } = await import("../config/support.ts");
  const targets =
    options.backend === undefined ? TARGETS : TARGETS.filter((target) => target === options.backend);
  if (options.json === true) {
    io.out(`${JSON.stringify(SUPPORT, null, 2)}\n`);
    return 0;
  }
  const planned = targets.filter((target) => target !== "trinity" && !TRAINS.includes(target));
  if (planned.length > 0) io.err(`not built in this version, as designed: ${planned.join(", ")}\n`);
  const rows = SUPPORT.filter(({ status }) => targets.some((target) => status[target] !== "-"));
  const width = Math.max(...rows.map(({ pattern }) => pattern.length)) + 2;
  io.out(`${"setting".padEnd(width)}${targets.map((target) => target.padEnd(11)).join("")}why\n`);
  for (const { pattern, status, reason, reasons } of rows) {
    const own = targets.filter((target) => reasons[target] !== undefined);
    const why = [
      ...(own.length === targets.length ? [] : [reason]),
      ...own.map((it) => `${it}: ${reasons[it]}`),
    ];
    io.out(
      `${pattern.padEnd(width)}${targets.map((target) => status[target].padEnd(11)).join("")}${why.join("; ")}\n`,
    );
  }
  return 0;
}

function asList(value: string | boolean | readonly string[] | undefined): string[] {
  if (value === undefined || typeof value === "boolean") return [];
  return typeof value === "string" ? [value] : [...value];
}
