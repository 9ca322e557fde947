/** `grpu config ...`: show, validate, explain, compare and convert configurations. */
import type { System } from "../../convert/contract.ts";
import { ConfigError } from "../../errors.ts";
import type { Command, Input, Io, Option } from "../command.ts";
import { EXIT_CONFIG } from "../process/exit.ts";
import { convertFiles } from "./config_convert.ts";
import {
  asList,
  configFiles,
  printProblems,
  readInput,
  shellOptions,
  splitArguments,
  toSource,
} from "./config_sources.ts";

const SYSTEMS = ["verl", "rllm", "trinity"];

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
    import("../../config/compose.ts"),
    import("../../config/show.ts"),
    import("../../config/yaml/tree.ts"),
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
  if (await printProblems(attempt.problems, attempt.warnings, io)) return EXIT_CONFIG;
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

async function validate({ args, options }: Input, io: Io): Promise<number> {
  const { validateFile } = await import("../../convert/inspect/validate.ts");
  const { formatProblem } = await import("../../config/problem.ts");
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

async function explain({ args, options }: Input, io: Io): Promise<number> {
  const { explainSetting, formatExplanation, formatSection, nearestSetting } = await import(
    "../../convert/inspect/explain.ts"
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
): Promise<import("../../convert/inspect/explain.ts").Explanation["value"] | "refused"> {
  const [{ tryCompose }, { valueInRun }] = await Promise.all([
    import("../../config/compose.ts"),
    import("../../convert/inspect/explain.ts"),
  ]);
  const attempt = tryCompose({ ...configFiles(), ...layers, env: io.env, allowMissing: true });
  if (await printProblems(attempt.problems, attempt.warnings, io)) return "refused";
  return valueInRun(key, attempt);
}

async function diff({ args, options }: Input, io: Io): Promise<number> {
  const { diffSources, formatDiff } = await import("../../convert/inspect/diff.ts");
  if (args.length !== 2)
    throw new ConfigError(`Cannot compare as two files are needed: ${args.length} given`);
  const [a, b] = [await readInput(args[0]!, io), await readInput(args[1]!, io)];
  const shell = shellOptions(options);
  const left = await toSource([a], options.systemA as System | undefined, shell);
  const right = await toSource([b], options.systemB as System | undefined, shell);
  const result = diffSources(left, right, configFiles().readConfig);
  if (
    await printProblems(
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

async function support({ options }: Input, io: Io): Promise<number> {
  const [{ supportTable, TRAINS }, { TARGETS }] = await Promise.all([
    import("../../config/fields/support.ts"),
    import("../../config/fields/field.ts"),
  ]);
  const targets = TARGETS.filter((it) => options.backend === undefined || it === options.backend);
  const table = supportTable();
  if (options.json === true) {
    io.out(`${JSON.stringify(table, null, 2)}\n`);
    return 0;
  }
  const planned = targets.filter((target) => target !== "trinity" && !TRAINS.includes(target));
  if (planned.length > 0) io.err(`not built in this version, as designed: ${planned.join(", ")}\n`);
  const rows = table.filter(({ on }) => targets.some((target) => on[target].status !== "-"));
  const width = Math.max(...rows.map(({ pattern }) => pattern.length)) + 2;
  io.out(`${"setting".padEnd(width)}${targets.map((target) => target.padEnd(11)).join("")}why\n`);
  for (const { pattern, on } of rows) {
    const present = targets.filter((target) => on[target].status !== "-");
    const reasons = [...new Set(present.map((target) => on[target].reason))];
    const why = reasons.map((reason) => {
      const those = present.filter((target) => on[target].reason === reason);
      return reasons.length === 1 ? reason : `${those.join(", ")}: ${reason}`;
    });
    const statuses = targets.map((target) => on[target].status.padEnd(11)).join("");
    io.out(`${pattern.padEnd(width)}${statuses}${why.join("; ")}\n`);
  }
  return 0;
}
