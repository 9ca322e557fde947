/**
 * Checks of a launch script's program: whether the settings belong to the system, and the configuration under its
 * overrides.
 */
import type { Problem } from "../../../train/config/problem.ts";
import { isTree, type YamlValue } from "../../../train/config/yaml/tree.ts";
import type { Note, TrainingSystem } from "../contract.ts";
import type { ShellRun } from "../shell/read.ts";

/** verl's programs for supervised training, sampling and scoring: their settings have other names and meanings. */
const NOT_RL = /(?:^|[./])(?:fsdp_sft_trainer|sft_trainer\w*|main_generation\w*|main_eval)(?:\.py)?$/;

/** Returns the reason why the settings of a program are not those of a training run. */
export function programProblem(program: string | undefined, system: TrainingSystem): string | undefined {
  if (system !== "verl" || program === undefined || !NOT_RL.test(program)) return undefined;
  return `Cannot convert what ${program} reads: it is not RL training. Convert the settings of verl.trainer.main_ppo instead.`;
}

export interface ConfigBelow {
  readonly settings: readonly (readonly [path: string, value: YamlValue])[];
  readonly note?: Note | undefined;
  readonly problem?: Problem;
}

const NOTHING: ConfigBelow = { settings: [] };
const DEFAULTS = ["ppo_trainer", "agent_ppo_trainer", "unified"];
const MEGATRON = ["ppo_megatron_trainer", "agent_ppo_trainer_megatron"];

interface Place {
  readonly system: TrainingSystem;
  /** Files that were read before. */
  readonly names: readonly string[];
}

/** The settings that `--config-name` puts under the overrides of a script. */
export function configBelow({ configName }: ShellRun, { system, names }: Place): ConfigBelow {
  if (system === "trinity" || configName === undefined || DEFAULTS.includes(configName.text)) return NOTHING;
  const { text: name, line } = configName;
  if (MEGATRON.includes(name)) {
    const message = `--config-name=${name} is read as model_engine=megatron`;
    return { settings: [["model_engine", "megatron"]], note: { kind: "check", message, line } };
  }
  const isGiven = names.some((file) => file.replace(/^.*\//, "").replace(/\.ya?ml$/, "") === name);
  if (isGiven) return NOTHING;
  const message =
    `Cannot read the settings of --config-name=${name}: that file comes before the overrides of this script. ` +
    `Give both files: ${name}.yaml, then the script.`;
  return { settings: [], problem: { severity: "error", message, line } };
}

/** The settings that the defaults list of a YAML file puts under its own. Reports files and groups that do not ship here. */
export function defaultsBelow(defaults: YamlValue | undefined, line?: number): ConfigBelow {
  const names = (Array.isArray(defaults) ? defaults : []).filter((name): name is string => typeof name === "string");
  const others = names.filter((name) => name !== "_self_" && !DEFAULTS.includes(name) && !MEGATRON.includes(name));
  const message = `defaults: ${others.join(", ")}: their settings are not read. Give those files first.`;
  return {
    settings: names.some((name) => MEGATRON.includes(name)) ? [["model_engine", "megatron"]] : [],
    note: others.length > 0 ? { kind: "check", message, line } : undefined,
  };
}

/** The presets that a defaults list chooses: those under the file's own values, and those over them. */
export function presetsIn(defaults: YamlValue | undefined): { below: string[]; above: string[] } {
  const entries = Array.isArray(defaults) ? (defaults as readonly YamlValue[]) : [];
  const self = entries.includes("_self_") ? entries.indexOf("_self_") : entries.length;
  const among = (some: readonly YamlValue[]) =>
    some.flatMap((entry) => (isTree(entry) && "preset" in entry ? [String(entry.preset)] : []));
  return { below: among(entries.slice(0, self)), above: among(entries.slice(self)) };
}
