/**
 * Settings whose defaults differ between two systems. Where nobody sets them, a conversion reports them, or writes them
 * with `pin`.
 */
import { RLLM_FIELDS } from "../../train/config/fields/rllm.ts";
import { VERL_SCHEDULE_RLLM, VERL_SCHEDULES, VERL_SHARED } from "../../train/config/sync/tables.ts";
import { equalValues, type YamlValue } from "../../train/config/yaml/tree.ts";
import type { Build } from "./build.ts";

/** One setting under the names of two systems, with the default of each. */
export interface DefaultPair {
  readonly from: string;
  readonly fromDefault: YamlValue;
  readonly to: string;
  readonly toDefault: YamlValue;
  /** The value in the other system; absent: the same. */
  readonly written?: YamlValue | undefined;
  /** Only where the source has a setting under this path. */
  readonly when?: string | undefined;
}

interface TrinityPair {
  readonly verl: string;
  readonly verlDefault: YamlValue;
  readonly trinity: string;
  readonly trinityDefault: YamlValue;
  readonly when?: { readonly verl: string; readonly trinity: string };
  /** The value in Trinity's form, where it is another. */
  readonly verlAsTrinity?: YamlValue;
  readonly trinityAsVerl?: YamlValue;
}

const ROLLOUT = "actor_rollout_ref.rollout";
const VAL = { verl: "data.val_files", trinity: "buffer.explorer_input.eval_tasksets.0.path" };

const VERL_TRINITY: readonly TrinityPair[] = [
  { verl: "trainer.total_epochs", verlDefault: 30, trinity: "buffer.total_epochs", trinityDefault: 1 },
  {
    verl: "actor_rollout_ref.actor.use_dynamic_bsz",
    verlDefault: false,
    trinity: "trainer.use_dynamic_bsz",
    trinityDefault: true,
  },
  {
    verl: "actor_rollout_ref.actor.strategy",
    verlDefault: "fsdp",
    trinity: "trainer.trainer_strategy",
    trinityDefault: "fsdp2",
  },
  {
    verl: "actor_rollout_ref.actor.optim.min_lr_ratio",
    verlDefault: 0,
    trinity: "algorithm.optimizer.min_lr_ratio",
    trinityDefault: 0.01,
  },
  {
    verl: `${ROLLOUT}.gpu_memory_utilization`,
    verlDefault: 0.5,
    trinity: "explorer.rollout_model.gpu_memory_utilization",
    trinityDefault: 0.9,
  },
  {
    verl: `${ROLLOUT}.tensor_model_parallel_size`,
    verlDefault: 2,
    trinity: "explorer.rollout_model.tensor_parallel_size",
    trinityDefault: 1,
  },
  {
    verl: "data.filter_overlong_prompts",
    verlDefault: false,
    trinity: "model.enable_prompt_truncation",
    trinityDefault: true,
  },
  {
    verl: "data.max_prompt_length",
    verlDefault: 512,
    trinity: "model.max_prompt_tokens",
    trinityDefault: null,
  },
  {
    verl: "data.max_response_length",
    verlDefault: 512,
    trinity: "model.max_response_tokens",
    trinityDefault: null,
  },
  {
    verl: "trainer.test_freq",
    verlDefault: -1,
    trinity: "explorer.eval_interval",
    trinityDefault: 100,
    when: VAL,
  },
  {
    verl: `${ROLLOUT}.val_kwargs.temperature`,
    verlDefault: 0,
    trinity: "buffer.explorer_input.eval_tasksets.*.rollout_args.temperature",
    trinityDefault: 1,
    when: VAL,
  },
  {
    verl: "data.shuffle",
    verlDefault: true,
    verlAsTrinity: "shuffle",
    trinity: "buffer.explorer_input.tasksets.*.SELECTOR.selector_type",
    trinityDefault: "sequential",
    trinityAsVerl: false,
    when: { verl: "data.train_files", trinity: "buffer.explorer_input.tasksets.0.path" },
  },
  {
    verl: "trainer.logger",
    verlDefault: ["console", "wandb"],
    verlAsTrinity: "wandb",
    trinity: "monitor.monitor_type",
    trinityDefault: "tensorboard",
    trinityAsVerl: ["console", "tensorboard"],
  },
];

/** Pairs verl's defaults with Trinity's, from either side. */
export function pairsWithTrinity(source: "verl" | "trinity", target: "legacy" | "new"): DefaultPair[] {
  const selector = target === "new" ? "data_selector" : "task_selector";
  return VERL_TRINITY.map((pair) => {
    const trinity = pair.trinity.replace("SELECTOR", selector);
    return source === "verl"
      ? {
          from: pair.verl,
          fromDefault: pair.verlDefault,
          to: trinity,
          toDefault: pair.trinityDefault,
          written: pair.verlAsTrinity,
          when: pair.when?.verl,
        }
      : {
          from: trinity,
          fromDefault: pair.trinityDefault,
          to: pair.verl,
          toDefault: pair.verlDefault,
          written: pair.trinityAsVerl,
          when: pair.when?.trinity,
        };
  });
}

/** Pairs rLLM's defaults with verl's where they differ. */
export function pairsWithRllm(source: "verl" | "rllm", verlDefaults: ReadonlyMap<string, YamlValue>): DefaultPair[] {
  const fields: Readonly<Record<string, { readonly default: YamlValue }>> = RLLM_FIELDS;
  const rows = [...VERL_SHARED, { native: VERL_SCHEDULES[0], rllm: VERL_SCHEDULE_RLLM }];
  return rows.flatMap(({ native, rllm }): DefaultPair[] => {
    const [ours, theirs] = [fields[rllm]?.default, verlDefaults.get(native!)];
    const isPlain = ours !== undefined && ours !== null && theirs !== undefined && !String(ours).includes("${");
    if (!isPlain || rllm === "rllm.algorithm.kl_beta" || equalValues(ours, theirs)) return [];
    return source === "rllm"
      ? [{ from: rllm, fromDefault: ours, to: native!, toDefault: theirs }]
      : [{ from: native!, fromDefault: theirs, to: rllm, toDefault: ours }];
  });
}

/** Reports, or writes with `pin`, every pair that neither the source nor the conversion has set. */
export function settleDefaults(build: Build, pairs: readonly DefaultPair[]): void {
  for (const pair of pairs) {
    if (pair.when !== undefined && !build.has(pair.when) && !hasList(build, pair.when)) continue;
    const targets = expand(build, pair.to);
    const isSet =
      isSetInSource(build, pair.from) || targets.length === 0 || targets.some((path) => build.values.has(path));
    if (isSet || equalValues(pair.fromDefault, pair.toDefault)) continue;
    const value = pair.written ?? pair.fromDefault;
    const isPinned = build.options.pin && value !== null;
    if (isPinned)
      for (const path of targets)
        build.put(path, value, { kind: "default differs", message: `the default of ${pair.from}` });
    else
      build.notes.push({
        kind: "default differs",
        from: pair.from,
        to: pair.to,
        message: `${show(pair.fromDefault)} here, ${show(pair.toDefault)} there`,
      });
  }
}

/** The paths behind `eval_tasksets.*.x`: one for each taskset that was written. */
function expand(build: Build, path: string): string[] {
  const star = path.indexOf(".*.");
  if (star < 0) return [path];
  const [list, rest] = [path.slice(0, star), path.slice(star + 3)];
  const found: string[] = [];
  for (let i = 0; build.values.has(`${list}.${i}.path`); i++) found.push(`${list}.${i}.${rest}`);
  return found;
}

function isSetInSource(build: Build, path: string): boolean {
  const star = path.indexOf(".*.");
  if (star < 0) return build.has(path);
  const [list, rest] = [path.slice(0, star), path.slice(star + 3)];
  const other = rest.startsWith("task_selector") ? rest.replace("task_selector", "data_selector") : rest;
  return [...build.source.values.keys()].some(
    (key) => key.startsWith(`${list}.`) && (key.endsWith(`.${rest}`) || key.endsWith(`.${other}`)),
  );
}

function hasList(build: Build, path: string): boolean {
  return build.has(path.replace("tasksets.0.", "taskset."));
}

function show(value: YamlValue): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}
