/** Where we differ from the published synchronisation on purpose, each with its reason. Everything else must be equal. */
import type { YamlValue } from "../../../src/train/config/yaml/tree.ts";

export interface Difference {
  readonly path: string;
  /** Undefined where there is no such setting. */
  readonly ours: YamlValue | undefined;
  readonly theirs: YamlValue | undefined;
  readonly set: readonly string[];
  readonly backend: string;
}

export interface Known {
  readonly reason: string;
  readonly holds: (difference: Difference) => boolean;
}

const names = (set: readonly string[], ...paths: string[]) =>
  set.some((text) => paths.includes(text.replace(/^\++/, "").split("=")[0]!));

const namesEither = (set: readonly string[], name: string): boolean =>
  names(set, `data.${name}`, `rllm.data.${name}`) || (name === "max_tokens" && namesEither(set, "max_response_length"));
const TINKER_DATA = ["train_batch_size", "val_batch_size", "max_prompt_length", "max_response_length", "max_tokens"];

export const KNOWN_VALUES: readonly Known[] = [
  {
    reason: "the published guide has these settings, the current source dropped them",
    holds: ({ path, theirs }) =>
      theirs === undefined &&
      /^(rllm\.sdk\.|data\.gen_batch_size$|sampling\.|training\.resume_from_tinker_id$)/.test(path),
  },
  {
    reason: "settings of our own",
    holds: ({ path, theirs }) =>
      theirs === undefined &&
      /^(rllm\.(transform\.|rejection_sample\.mode$|algorithm\.(traj_gr|estimator_args|loss_args)))/.test(path),
  },
  {
    reason: "the guide's default is true, the current source says false",
    holds: ({ path, set }) =>
      /^(rllm\.)?trainer\.val_before_train$/.test(path) &&
      !names(set, "trainer.val_before_train", "rllm.trainer.val_before_train"),
  },
  {
    reason: "the guide pins it to false",
    holds: ({ path, ours }) => path === "data.return_multi_modal_inputs" && ours === false,
  },
  {
    reason:
      "lengths are settled before what refers to them: theirs keeps a response length that max_tokens contradicts",
    holds: ({ path, set }) => path.endsWith(".response_length") && names(set, "data.max_response_length"),
  },
  {
    reason: "the backend's own data block goes before base.yaml, which theirs lays over it",
    holds: ({ path, backend, set }) =>
      backend === "tinker" && TINKER_DATA.some((name) => path.endsWith(name) && !namesEither(set, name)),
  },
  {
    reason: "a null in a section is typed, so it holds on both sides: theirs leaves the native default",
    holds: ({ path, set, ours }) =>
      path === "actor_rollout_ref.rollout.top_p" &&
      ours === null &&
      /rllm\.rollout\.train=\{.*top_p: null/.test(set.join()),
  },
  {
    reason:
      "the guide's sampling.train.top_k and sampling.val.top_k, which the source dropped, have a portable name here",
    holds: ({ path, ours, backend }) => backend === "tinker" && /top_k$/.test(path) && ours === -1,
  },
  {
    reason: "the engine reads the mode in its own section, where theirs does not write it",
    holds: ({ path, ours }) =>
      /actor\.(megatron|veomni)\.router_replay\.mode$/.test(path) && /^R[23]$/.test(String(ours)),
  },
];

/** One side refuses what the other takes. */
interface Refusals {
  readonly backend: string;
  readonly ours: string | undefined;
  readonly theirs: string | undefined;
}

export const KNOWN_REFUSALS: readonly {
  readonly reason: string;
  readonly holds: (pair: Refusals) => boolean;
}[] = [
  {
    reason: "on tinker this loop reads the value itself, and refuses one that it cannot run with",
    holds: ({ backend, ours }) => backend === "tinker" && /, not null\.$/.test(ours ?? ""),
  },
  {
    reason: "verl's top_k alone ends theirs with an exception because base.yaml has no place for it; ours makes one",
    holds: ({ ours, theirs }) =>
      ours === undefined && /^ConfigAttributeError: Key 'top_k' is not in struct/.test(theirs ?? ""),
  },
];
