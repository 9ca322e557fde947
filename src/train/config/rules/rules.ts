/** Rules between settings. Each is a function of the resolved configuration; all of them are checked. */
import type { BackendName } from "../fields/backend_fields.ts";
import { getAt, type Tree, type YamlValue } from "../yaml/tree.ts";

export interface Finding {
  readonly severity: "error" | "warning";
  readonly message: string;
  /** The setting that the message is about. */
  readonly path: string;
}

type Read = (path: string) => YamlValue | undefined;
interface Rule {
  readonly backends: readonly BackendName[] | "all";
  /** Checked only when the configuration is about to run, not when it is shown. */
  readonly onlyReady?: boolean;
  /** @param isTyped whether the command line sets a path: files may write out every default */
  readonly check: (read: Read, isTyped: (path: string) => boolean) => Finding | undefined;
}

const error = (path: string, message: string): Finding => ({ severity: "error", path, message });
const warning = (path: string, message: string): Finding => ({ severity: "warning", path, message });
const number = (value: YamlValue | undefined) => (typeof value === "number" ? value : undefined);

const RULES: readonly Rule[] = [
  {
    backends: "all",
    check: (read) =>
      read("rllm.rejection_sample.multiplier") !== 1 && read("rllm.rejection_sample.enable") !== true
        ? error(
            "rllm.rejection_sample.multiplier",
            `Cannot set rllm.rejection_sample.multiplier=${read("rllm.rejection_sample.multiplier")}: rejection sampling is off. ` +
              "Set rllm.rejection_sample.enable=true, or multiplier=1.",
          )
        : undefined,
  },
  {
    backends: "all",
    check(read) {
      const [n, least] = [number(read("rllm.rollout.n")), number(read("rllm.rejection_sample.min_trajs_per_group"))];
      if (n === undefined || least === undefined || n >= least || read("rllm.trainer.val_only") === true)
        return undefined;
      return warning(
        "rllm.rollout.n",
        `rllm.rollout.n=${n} trains nothing: rllm.rejection_sample.min_trajs_per_group=${least} drops every group. ` +
          "Raise the first or lower the second.",
      );
    },
  },
  {
    backends: "all",
    check: (read) =>
      read("rllm.async_training.enable") === true && read("rllm.workflow.raise_on_error") === true
        ? error(
            "rllm.workflow.raise_on_error",
            "Cannot train asynchronously with rllm.workflow.raise_on_error=true: one failed rollout would stop both sides. Set it to false.",
          )
        : undefined,
  },
  {
    backends: "all",
    check: (read) =>
      read("rllm.algorithm.rollout_correction.bypass_mode") === true &&
      read("rllm.algorithm.rollout_correction.tis_mode") != null
        ? error(
            "rllm.algorithm.rollout_correction.tis_mode",
            "Cannot correct by importance weights in bypass mode: both log-probs are the sampler's. " +
              "Set rllm.algorithm.rollout_correction.bypass_mode=false, or tis_mode=null.",
          )
        : undefined,
  },
  {
    backends: ["local"],
    check(read) {
      if (read("model.name") !== null) return undefined;
      const [hidden, heads, kv] = [
        read("model.init.hidden_size"),
        read("model.init.heads"),
        read("model.init.kv_heads"),
      ];
      if (!number(hidden) || !number(heads) || !number(kv) || Number(heads) % Number(kv) === 0) return undefined;
      return error(
        "model.init.kv_heads",
        `Cannot build the model: kv_heads does not divide heads (${kv}, ${heads}). Change one of the two.`,
      );
    },
  },
  {
    backends: ["local"],
    check(read) {
      const path = "rollout.speculative_config.prompt_lookup_min";
      const [least, most] = [number(read(path)), number(read("rollout.speculative_config.prompt_lookup_max"))];
      if (least === undefined || most === undefined || least <= most) return undefined;
      return error(
        path,
        `Cannot guess tokens: ${path}=${least} is above prompt_lookup_max=${most}. Lower it, or set one of the two to null.`,
      );
    },
  },
  {
    backends: ["local", "tinker"],
    check(read) {
      const [mode, from] = [read("training.resume_mode"), read("training.resume_from_path")];
      if (mode === "resume_path" && from === null) {
        return error(
          "training.resume_from_path",
          "Cannot resume: training.resume_mode=resume_path needs a training.resume_from_path. Set it.",
        );
      }
      if (mode === "resume_path" || from === null) return undefined;
      return error(
        "training.resume_from_path",
        `Cannot resume from training.resume_from_path=${from}: training.resume_mode is ${mode}. Set it to resume_path.`,
      );
    },
  },
  {
    backends: ["local", "tinker"],
    check(read, isTyped) {
      const [threshold, path] = ["training.max_off_policy_threshold", "training.max_off_policy_strategy"];
      if (read(threshold) !== null || (read(path) !== "mask" && !isTyped(path))) return undefined;
      return warning(
        path,
        `${path}=${read(path)} has no effect: ${threshold} is null, so that no reply counts as too old. Set ${threshold}, or remove ${path}.`,
      );
    },
  },
  {
    backends: ["local", "tinker"],
    check(read) {
      const whole = Number(read("rllm.data.max_prompt_length")) + Number(read("rllm.data.max_response_length"));
      const most = number(read("training.max_length"));
      if (most === undefined || Number.isNaN(whole) || whole <= most) return undefined;
      return warning(
        "training.max_length",
        `training.max_length=${most} is less than prompt and response together (${whole}). Responses end early.`,
      );
    },
  },
  {
    backends: ["tinker"],
    check(read) {
      const [path, temperature] = ["rllm.rollout.train.temperature", Number(read("rllm.rollout.train.temperature"))];
      if (temperature === 1 || temperature === 0 || !(Number(read("rllm.algorithm.kl_beta")) > 0)) return undefined;
      return error(
        path,
        `Cannot train with rllm.algorithm.kl_beta=${read("rllm.algorithm.kl_beta")} on samples at temperature ${temperature}: Tinker has the reference's log-probs at temperature 1. Set ${path}=1, or kl_beta to 0.`,
      );
    },
  },
  {
    backends: ["tinker"],
    check: (read) =>
      read("rllm.algorithm.router_replay") !== "disabled"
        ? error(
            "rllm.algorithm.router_replay",
            `Cannot replay expert routing: Tinker does not report it (${read("rllm.algorithm.router_replay")}). Set it to disabled.`,
          )
        : undefined,
  },
];

interface RuleOptions {
  readonly backend: BackendName;
  readonly isReady: boolean;
  readonly more?: readonly Rule[];
  readonly isTyped?: (path: string) => boolean;
}

/** Every broken rule of a resolved configuration. */
export function checkRules(tree: Tree, { backend, isReady, more = [], isTyped = () => false }: RuleOptions): Finding[] {
  const read: Read = (path) => getAt(tree, path);
  return [...RULES, ...more]
    .filter((rule) => rule.backends === "all" || rule.backends.includes(backend))
    .filter((rule) => isReady || !rule.onlyReady)
    .map((rule) => rule.check(read, isTyped))
    .filter((finding) => finding !== undefined);
}

export type { Rule };
