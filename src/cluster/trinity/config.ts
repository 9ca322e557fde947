/** A composed configuration as Trinity-RFT's own: converted from verl's names, with what the run sets and what the section `trinity` says. */
import type { Composed } from "../../train/config/compose.ts";
import { fitValue } from "../../train/config/fields/fit.ts";
import { nearestPath, type Problem } from "../../train/config/problem.ts";
import { LEVEL, originOf } from "../../train/config/yaml/layer.ts";
import { getAt, isTree, type Tree, type YamlValue } from "../../train/config/yaml/tree.ts";
import type { ConvertedSource, Note, SourceValue } from "../convert/contract.ts";
import { knownSettings, readProfile } from "../convert/convert.ts";
import { trinityField } from "../convert/trinity/fields.ts";
import { verlToTrinity } from "../convert/trinity/from_verl.ts";
import { type GpuPlan, planOf } from "../convert/trinity/gpus.ts";
import { convertedTree } from "../convert/write.ts";
import { explicitSettings } from "../verl/overrides.ts";
import { lengthProblems, lengths, stepsOf } from "./length.ts";
import { fixedSettings, type TaskFolders, usualSettings } from "./own_settings.ts";
import { findTrinityRefusals } from "./refusals.ts";

export interface ConfigRequest {
  /** Composed with `rllm/backend=trinity`. */
  readonly composed: Composed;
  readonly folders: TaskFolders;
  /** Training tasks. */
  readonly tasks: number;
  readonly hasAgent: boolean;
  /** Names of the run's own stages, losses and other hooks in TypeScript that would act in the training step. */
  readonly hooks: readonly string[];
  readonly readConfig: (name: string) => string | undefined;
}

export interface TrinityConfig {
  /** Trinity's configuration. */
  readonly tree: Tree;
  readonly problems: readonly Problem[];
  /** Absent where nothing samples or trains on GPUs of the cluster. */
  readonly gpus: GpuPlan | undefined;
}

type Read = (path: string) => YamlValue | undefined;

/** Trinity's configuration of a run, and what is wrong with the run. */
export function trinityConfig(request: ConfigRequest): TrinityConfig {
  const { composed, hasAgent, readConfig } = request;
  const read: Read = (path) => getAt(composed.config, path);
  const section = sectionOf(composed);
  const onlyValidates = read("trainer.val_only") === true || section.get("mode") === "bench";
  const frequency = Number(read("trainer.test_freq"));
  const validates = frequency > 0 || read("trainer.val_before_train") === true || onlyValidates;
  const folders = { ...request.folders, ...(!validates && { val: undefined }) };
  const settings = {
    ...{ folders, hasAgent, onlyValidates, isTinker: section.get("model.tinker.enable") === true },
    disablesThinking: read("rllm.disable_thinking") === true,
  };
  const fixed = fixedSettings(settings);
  const steps = lengths(section, stepsOf(request.tasks, read));
  const profile = new Map([...usualSettings(settings), ...section, ...steps, ...fixed]);
  const converted = verlToTrinity(sourceOf({ ...request, folders }), {
    ...{ target: "new", cadence: "scale", pin: true, profile },
  });
  const values = new Map([...converted.values].map(([path, { value }]) => [path, value] as const));
  const out: Read = (path) => values.get(path);
  const problems = [
    ...sectionProblems(section, { fixed, readConfig }),
    ...converted.problems,
    ...droppedProblems(composed, converted.notes),
    ...lengthProblems({ section, out }),
    ...findTrinityRefusals({ ...request, folders, read, out }),
  ];
  const gpus = out("model.tinker.enable") === true ? undefined : planOf(out);
  return { tree: convertedTree(converted.values), problems, gpus };
}

/** Returns the run's settings under verl's names, with the lines of those that a person wrote. */
function sourceOf({ composed, folders, hasAgent }: ConfigRequest): ConvertedSource {
  const explicit = explicitSettings(composed);
  for (const [path, folder] of [
    ["data.train_files", folders.train],
    ["data.val_files", folders.val],
  ] as const) {
    if (folder === undefined) explicit.delete(path);
    else explicit.set(path, folder);
  }
  // Validation before training alone: the next one would come after the end.
  const every = "trainer.test_freq";
  if (folders.val !== undefined && !(Number(getAt(composed.config, every)) > 0)) explicit.set(every, NEVER);
  const seed = getAt(composed.config, "rllm.data.seed");
  if (!explicit.has("data.seed") && typeof seed === "number") explicit.set("data.seed", seed);
  // Where Trinity renders the prompts. It leaves rows above the limit out of the loss, and verl leaves them out of the data.
  const limit = "data.filter_overlong_prompts";
  if (!hasAgent && (originOf(composed.origins, limit)?.level ?? LEVEL.native) < LEVEL.file) explicit.set(limit, true);
  // Batches are always computed from these.
  for (const path of NEEDED) explicit.set(path, getAt(composed.config, path)!);
  const values = [...explicit].flatMap(([path, value]): [string, SourceValue][] => {
    if (OF_THIS_PROCESS.test(path)) return [];
    const { file, line, level = 0 } = originOf(composed.origins, path) ?? {};
    return [[path, { value, file: level >= LEVEL.file ? (file ?? "") : "", line }]];
  });
  return { system: "verl", values: new Map(values), problems: [] };
}

/** Steps, of which no run has so many. */
const NEVER = 1_000_000_000;

const NEEDED = [
  ...["data.train_batch_size", "data.max_prompt_length", "data.max_response_length", "algorithm.adv_estimator"],
  ...["actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.rollout.n"],
  ...["trainer.nnodes", "trainer.n_gpus_per_node"],
];

/** The section `trinity`, the loggers of this process, and the length of the run, which is computed. */
const OF_THIS_PROCESS = /^(trinity(\.|$)|trainer\.(logger|total_training_steps)$)/;

function sectionOf({ config }: Composed): Map<string, YamlValue> {
  const section = getAt(config, "trinity");
  const isEmpty = !isTree(section) || Object.keys(section).length === 0;
  return isEmpty ? new Map() : readProfile({ trinity: section }, "trinity");
}

interface SectionCheck {
  readonly fixed: ReadonlyMap<string, YamlValue>;
  readonly readConfig: ConfigRequest["readConfig"];
}

/** Reasons why a setting that Trinity knows does nothing in a run of this process, or hides what it needs. */
const INERT: readonly (readonly [path: RegExp, reason: string])[] = [
  [/^stages(\.|$)/, "the job runs one stage, the configuration itself. Submit a run for each stage."],
  [/^log\.save_dir$/, "Trinity writes its logs beside its checkpoints. Set trainer.default_local_dir."],
  [/^buffer\.total_epochs$/, "the run's length is given in steps. Set rllm.trainer.total_epochs."],
  [/^log\.level$/, "metrics, failures and errors are read from lines of the level INFO. Choose INFO or DEBUG."],
];

function inertReason(path: string, value: YamlValue): string | undefined {
  if (path === "log.level" && ["INFO", "DEBUG"].includes(String(value).toUpperCase())) return undefined;
  return INERT.find(([pattern]) => pattern.test(path))?.[1];
}

function sectionProblems(section: ReadonlyMap<string, YamlValue>, { fixed, readConfig }: SectionCheck): Problem[] {
  const { isKnown, all: paths } = knownSettings("trinity", readConfig);
  return [...section].flatMap(([path, value]): Problem[] => {
    const error = (message: string): Problem[] => [{ severity: "error", message, path: `trinity.${path}` }];
    if (
      fixed.has(path) ||
      /\.(default_reward_fn_type|default_eval_workflow_type|workflow_key|reward_fn_key)$/.test(path)
    )
      return error(`Cannot set trinity.${path}: tasks, rewards and agents are this run's own. Remove it.`);
    const reason = inertReason(path, value);
    if (reason !== undefined) return error(`Cannot set trinity.${path}: ${reason}`);
    if (!isKnown(path)) {
      const close = nearestPath(path, paths);
      const meant = close ? ` Did you mean trinity.${close}?` : "";
      return error(`Cannot set trinity.${path}: Trinity-RFT has no such setting.${meant}`);
    }
    const field = trinityField(path);
    const problem = field && fitValue(`trinity.${path}`, field, value, {}).problem;
    return problem === undefined ? [] : error(problem);
  });
}

/** Nothing is lost where the setting does nothing in verl either, or Trinity does the same by itself. */
const IDLE = /so it has no effect$|anyway$|Trinity's default|validation is off|there are no|no limit/;
/** Settings that decide the result of training. */
const OF_THE_STEP = /^(algorithm|critic)\.|^actor_rollout_ref\.(actor|ref|model)\./;

/** Returns problems for the settings that somebody wrote and Trinity has no counterpart for. */
function droppedProblems({ origins }: Composed, notes: readonly Note[]): Problem[] {
  return notes.flatMap(({ kind, from, message = "" }): Problem[] => {
    const origin = from === undefined ? undefined : originOf(origins, from);
    if (kind !== "dropped" || from === undefined || (origin?.level ?? LEVEL.native) < LEVEL.file) return [];
    if (IDLE.test(message)) return [];
    const place = { path: from, file: origin?.file, line: origin?.line };
    return OF_THE_STEP.test(from)
      ? [{ severity: "error", message: `Cannot set ${from} on Trinity: ${message}. Remove it.`, ...place }]
      : [{ severity: "warning", message: `${from} has no effect on Trinity: ${message}.`, ...place }];
  });
}
