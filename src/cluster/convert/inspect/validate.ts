/** Checks one file of any system. */

import { tryCompose } from "../../../train/config/compose.ts";
import type { ComposeOptions } from "../../../train/config/compose_options.ts";
import type { Field } from "../../../train/config/fields/field.ts";
import { fitValue } from "../../../train/config/fields/fit.ts";
import { allVerlLeaves, verlField } from "../../../train/config/fields/verl_tree.ts";
import { nearestPath, type Problem } from "../../../train/config/problem.ts";
import { isSecret } from "../../../train/config/secret.ts";
import { leaves, MANDATORY } from "../../../train/config/yaml/tree.ts";
import { Build } from "../build.ts";
import type { ConvertedSource, TrainingSystem } from "../contract.ts";
import { knownSettings } from "../convert.ts";
import type { ShellOptions } from "../shell/read.ts";
import { readSource, type SourceFile } from "../source/read.ts";
import { checkTrinity } from "../trinity/check.ts";
import { trinityField } from "../trinity/fields.ts";

export interface ValidateOptions extends Pick<ComposeOptions, "readConfig" | "env" | "registered" | "readFile"> {
  /** Overrides the guess. */
  readonly system?: TrainingSystem | undefined;
  /** Laid over the file, as `train` takes them. */
  readonly overrides?: readonly string[];
  /** Options for shell scripts. */
  readonly shell?: ShellOptions;
}

export interface Validated {
  readonly system: TrainingSystem;
  readonly problems: readonly Problem[];
  /** Mandatory settings that a run needs besides: another file or the command line may give them. */
  readonly missing: readonly string[];
}

const ROOTS: Readonly<Record<Exclude<TrainingSystem, "rllm">, RegExp>> = {
  trinity: /^(buffer|explorer|synchronizer|cluster|monitor|checkpoint_root_dir)(\.|$)|^algorithm\.algorithm_type$/,
  verl: /^(actor_rollout_ref|critic|reward_model|algorithm\.adv_estimator)(\.|$)/,
};

/** Returns the system that a file is written for, by the sections that only one of them has. */
export function detectSystem(paths: Iterable<string>): TrainingSystem {
  const found = [...paths];
  if (found.some((path) => path.startsWith("rllm."))) return "rllm";
  if (found.some((path) => ROOTS.trinity.test(path))) return "trinity";
  return found.some((path) => ROOTS.verl.test(path)) ? "verl" : "rllm";
}

/** Every problem of one file with overrides over it, in the order of its lines; without a file, of the overrides. */
export function validateFile(file: SourceFile | undefined, options: ValidateOptions): Validated {
  const typed = { name: "overrides.args", text: (options.overrides ?? []).join("\n") };
  const files = [...(file ? [file] : []), ...(typed.text === "" ? [] : [typed])];
  const read = (as: TrainingSystem) => readSource(files, as, { ...options.shell, readConfig: options.readConfig });
  const guess = read(options.system ?? "verl");
  const isBackend = options.overrides?.some((text) => text.startsWith("rllm/")) ?? false;
  const system = options.system ?? (isBackend ? "rllm" : detectSystem(guess.values.keys()));
  const isComposed = system === "rllm" && !(file && isScript(file));
  const { problems, missing } = isComposed
    ? validateComposed(file, options)
    : { problems: validateSource(read(system), options), missing: [] };
  return { system, problems: problems.toSorted((a, b) => (a.line ?? 0) - (b.line ?? 0)), missing };
}

function isScript({ name }: SourceFile): boolean {
  return /\.(sh|bash|args|txt)$/.test(name);
}

function validateComposed(
  file: SourceFile | undefined,
  options: ValidateOptions,
): Pick<Validated, "problems" | "missing"> {
  const readFile = (path: string) => (path === file?.name ? file.text : options.readFile?.(path));
  const attempt = tryCompose({ ...options, files: file ? [file.name] : [], readFile, allowMissing: true });
  const missing = [...leaves(attempt.config)].flatMap(([path, value]) =>
    value === MANDATORY && !path.startsWith("reward") ? [path] : [],
  );
  return { problems: [...attempt.problems, ...attempt.warnings], missing };
}

function validateSource(source: ConvertedSource, { readConfig, registered }: ValidateOptions): Problem[] {
  const problems: Problem[] = [...source.problems, ...readingWarnings(source)];
  const { isKnown, all: paths } = knownSettings(source.system, readConfig);
  const natives = source.system === "trinity" ? undefined : allVerlLeaves(readConfig);
  for (const [path, { value, file, line, isAdded, unread }] of source.values) {
    if (unread !== undefined) continue;
    const addProblem = (severity: Problem["severity"], message: string) => {
      problems.push({ severity, message, path, file, line });
    };
    if (isAdded && !isKnown(path) && source.system !== "trinity") continue;
    if (!isKnown(path)) {
      const close = nearestPath(path, paths);
      addProblem(
        "error",
        `Cannot set ${path}: ${source.system} has no such setting.${close ? ` Did you mean ${close}?` : ""}`,
      );
      continue;
    }
    const native = natives?.get(path);
    const field: Field | undefined = native ? verlField(path, native.value) : trinityField(path);
    if (!field) continue;
    const fit = fitValue(path, field, value, registered);
    if (fit.problem) addProblem("error", isSecret(path) ? `Cannot set ${path}: it takes text.` : fit.problem);
  }
  if (source.system === "trinity") problems.push(...validateTrinity(source));
  return problems;
}

/** The assumptions that reading a script made. */
function readingWarnings({ notes = [] }: ConvertedSource): Problem[] {
  return notes.map(({ message = "", line }): Problem => ({ severity: "warning", message, line }));
}

/** Checks GPU split, lengths, cadence and batch arithmetic of a Trinity file. */
function validateTrinity(source: ConvertedSource): Problem[] {
  const build = new Build({ ...source, problems: [] }, {});
  for (const [path, { value }] of source.values) build.values.set(path, { value, from: [path] });
  checkTrinity(build);
  const paths = [...source.values.keys()];
  const example = paths.find((path) => path.startsWith("buffer.explorer_input.taskset."));
  if (example && paths.some((path) => path.startsWith("buffer.explorer_input.tasksets."))) {
    build.fail("Cannot explore both taskset and tasksets. Keep one.", example);
  }
  const checks = build.notes
    .filter(({ kind, message }) => kind === "check" && !/verl|^\d+ x \d+ = /.test(message ?? ""))
    .map(
      (note): Problem => ({
        severity: "warning",
        message: note.message ?? "",
        file: [...source.values.values()][0]?.file,
      }),
    );
  return [...build.problems, ...checks];
}
