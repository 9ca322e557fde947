/** Rules of distillation: the teacher is named, and its loss can be taken. */
import type { YamlValue } from "../yaml/tree.ts";
import type { Finding, Rule } from "./rules.ts";

type Check = Rule["check"];
type Read = Parameters<Check>[0];

const LOSS = "distillation.distillation_loss";
const MODEL_PATH = "distillation.teacher_models.teacher_model.model_path";
const error = (path: string, message: string): Finding => ({ severity: "error", path, message });
const isTopk = (mode: YamlValue | undefined) => String(mode).includes("_topk");

/** A check of runs that distil. */
function distilling(check: (read: Read) => Finding | undefined): Check {
  return (read) => (read("distillation.enabled") === true ? check(read) : undefined);
}

const named = distilling((read) => {
  const [kind, path, url] = [read("distillation.teacher_kind"), read(MODEL_PATH), read("distillation.teacher_url")];
  if (kind === "self" && path !== null)
    return error(
      MODEL_PATH,
      `Cannot use the teacher ${path}: distillation.teacher_kind=self makes the student its own teacher. Set teacher_kind=local, or ${MODEL_PATH}=null.`,
    );
  if (kind !== "self" && path === null)
    return error(
      MODEL_PATH,
      `Cannot distil: no teacher is named. Set ${MODEL_PATH} to its folder, or distillation.teacher_kind=self.`,
    );
  if (kind === "openai" && url === null)
    return error(
      "distillation.teacher_url",
      "Cannot distil from an OpenAI-compatible server: its address is missing. Set distillation.teacher_url, for instance http://HOST:8000/v1.",
    );
  if (url === null || kind === "openai" || kind === "tinker") return undefined;
  return error(
    "distillation.teacher_url",
    `Cannot use distillation.teacher_url=${url}: distillation.teacher_kind=${kind} has no address. Set teacher_kind=tinker or openai, or remove the address.`,
  );
});

const scored = distilling((read) => {
  const [kind, path] = [read("distillation.teacher_kind"), "rllm.rollout.train.temperature"];
  if ((kind !== "tinker" && kind !== "openai") || Number(read(path)) === 1) return undefined;
  return error(
    path,
    `Cannot distil samples at temperature ${read(path)} from a service: it has log-probs at temperature 1. Set ${path}=1, or take a teacher on this device.`,
  );
});

const estimated = distilling((read) => {
  const [path, mode] = [`${LOSS}.loss_mode`, read(`${LOSS}.loss_mode`)];
  const isGradient = read(`${LOSS}.use_policy_gradient`) === true;
  if (isTopk(mode) && isGradient)
    return error(
      path,
      `Cannot take ${path}=${mode} as a policy gradient: an advantage moves the sampled token alone. Set ${LOSS}.use_policy_gradient=false, or loss_mode=k1.`,
    );
  if (!isGradient && (mode === "k1" || mode === "kl"))
    return error(
      path,
      `Cannot take ${path}=${mode} as a loss: its gradient does not depend on the teacher. Set ${LOSS}.use_policy_gradient=true, or loss_mode=k3.`,
    );
  return undefined;
});

/** Texts are compared at the sampled tokens, by a teacher with a tokenizer of its own. */
const byText = distilling((read) => {
  const path = "distillation.shared_tokenizer";
  const mode = read(`${LOSS}.loss_mode`);
  if (read(path) !== false) return undefined;
  if (isTopk(mode))
    return error(
      path,
      `Cannot take ${LOSS}.loss_mode=${mode} with ${path}=false: the teacher's likeliest tokens are of another vocabulary. Set loss_mode=k1 with ${LOSS}.use_policy_gradient=true.`,
    );
  if (read("distillation.teacher_kind") === "self")
    return error(
      path,
      `Cannot use ${path}=false with distillation.teacher_kind=self: the student has its own tokenizer. Set ${path}=true.`,
    );
  if (read("distillation.teacher_kind") !== "openai" || read("distillation.teacher_tokenizer") !== null)
    return undefined;
  return error(
    "distillation.teacher_tokenizer",
    `Cannot use ${path}=false with a server of OpenAI's API: it does not report its tokenizer. Set distillation.teacher_tokenizer to a folder with the teacher's tokenizer.json.`,
  );
});

/** Findings about settings that act on some of the losses alone. */
const bounded = distilling((read) => {
  const isGradient = read(`${LOSS}.use_policy_gradient`) === true;
  const isTop = isTopk(read(`${LOSS}.loss_mode`));
  const unread: readonly (readonly [string, boolean, string])[] = [
    ["loss_max_clamp", !isTop && !isGradient && read(`${LOSS}.loss_max_clamp`) !== null, "use_policy_gradient=true"],
    ["log_prob_min_clamp", !isTop && read(`${LOSS}.log_prob_min_clamp`) !== null, "loss_mode=forward_kl_topk"],
    ["kl_discount_factor", !isGradient && read(`${LOSS}.kl_discount_factor`) !== 0, "use_policy_gradient=true"],
  ];
  const found = unread.find(([, isUnread]) => isUnread);
  if (!found) return undefined;
  const path = `${LOSS}.${found[0]}`;
  return error(
    path,
    `Cannot use ${path}=${read(path)}: ${LOSS}.loss_mode=${read(`${LOSS}.loss_mode`)} does not read it. Set ${LOSS}.${found[2]}, or remove the setting.`,
  );
});

const oneReference = distilling((read) => {
  const isTerm = !isTopk(read(`${LOSS}.loss_mode`)) && read(`${LOSS}.use_policy_gradient`) !== true;
  if (!isTerm || read("rllm.algorithm.kl_beta") === 0) return undefined;
  return error(
    "rllm.algorithm.kl_beta",
    `Cannot take the KL to the reference and to the teacher in one loss (rllm.algorithm.kl_beta=${read("rllm.algorithm.kl_beta")}). Set it to 0, or ${LOSS}.use_policy_gradient=true.`,
  );
});

const precomputed = distilling((read) => {
  if (read("rllm.algorithm.use_precomputed_advantage") !== true || read(`${LOSS}.use_task_rewards`) === true)
    return undefined;
  return error(
    "rllm.algorithm.use_precomputed_advantage",
    `Cannot keep the advantages that steps carry: ${LOSS}.use_task_rewards=false trains on the teacher's alone. Set ${LOSS}.use_task_rewards=true, or use_precomputed_advantage=false.`,
  );
});

const criticless = distilling((read) => {
  const enable = read("critic.enable");
  const isTrained = enable === true || (enable === null && read("rllm.algorithm.adv_estimator") === "gae");
  if (!isTrained || read(`${LOSS}.use_task_rewards`) === true) return undefined;
  return error(
    "critic.enable",
    `Cannot train a critic: ${LOSS}.use_task_rewards=false estimates no returns. Set critic.enable=false and another adv_estimator than gae, or use_task_rewards=true.`,
  );
});

const onTinker = distilling((read) => {
  const path = `${LOSS}.loss_mode`;
  if (!isTopk(read(path))) return undefined;
  return error(
    path,
    `Cannot train with ${path}=${read(path)} on a Tinker service: the loss over several tokens at a place runs on this device alone. Use rllm/backend=local, or loss_mode=k1 with ${LOSS}.use_policy_gradient=true.`,
  );
});

export const DISTILLATION_RULES: readonly Rule[] = [
  ...[named, scored, estimated, byText, bounded, oneReference, precomputed].map(
    (check): Rule => ({ backends: ["local", "tinker"], check }),
  ),
  { backends: ["local"], check: criticless },
  { backends: ["tinker"], check: onTinker },
];
