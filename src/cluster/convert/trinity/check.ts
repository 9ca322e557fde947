/** Reports what Trinity would refuse or silently rewrite, and what behaves differently from verl. */
import type { YamlValue } from "../../../train/config/yaml/tree.ts";
import type { Build } from "../build.ts";
import { checkGpus } from "./gpus.ts";
import { FILLED_IN, FROZEN_IN_NEW } from "./rows.ts";

type Out = (path: string) => YamlValue | undefined;

export function checkTrinity(build: Build): void {
  const out: Out = (path) => build.values.get(path)?.value;
  checkGpus(build, out);
  checkCadence(build, out);
  checkLengths(build, out);
  checkTrainerConfig(build);
  const warmUp = Number(out("algorithm.optimizer.lr_warmup_steps_ratio") ?? 0);
  if (warmUp > 0 && out("trainer.total_steps") === undefined) {
    build.check(
      "a warm-up ratio needs trainer.total_steps: without it Trinity's legacy builder warms up over an endless run, at a learning rate near 0",
      "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio",
    );
  }
  const micro = [...build.values.keys()].find((path) => path.endsWith("ppo_micro_batch_size_per_gpu"));
  if (out("trainer.use_dynamic_bsz") === undefined && micro !== undefined) {
    build.check(`${micro} has no effect while trainer.use_dynamic_bsz is true, Trinity's default`, micro);
  }
  if (Number(out("synchronizer.sync_offset")) > 0) {
    build.check(
      "synchronizer.sync_offset=1 lets rollouts run one step ahead; 0 is what verl does (set it in the profile)",
    );
  }
  if (Number(build.peek("actor_rollout_ref.actor.ppo_epochs") ?? 1) > 1) {
    build.check(
      "several passes over a batch change how many optimiser steps an iteration has",
      "actor_rollout_ref.actor.ppo_epochs",
    );
  }
}

/** Notes the settings under trainer_config that have no effect there. */
function checkTrainerConfig(build: Build): void {
  const at = "trainer.trainer_config.";
  for (const path of build.values.keys()) {
    if (!path.startsWith(at)) continue;
    const key = path.slice(at.length);
    if (FILLED_IN.test(key)) build.check(`${path} has no effect: Trinity fills it in itself`, path);
    else if (build.options.target === "new" && FROZEN_IN_NEW.test(key)) {
      build.check(`${path} has no effect: the new builder takes it from its own settings`, path);
    }
  }
}

function checkCadence(build: Build, out: Out): void {
  const [interval, evaluation] = [Number(out("synchronizer.sync_interval")), Number(out("explorer.eval_interval"))];
  if (Number.isNaN(evaluation) || evaluation % interval === 0) return;
  const rewritten = Math.max(interval, evaluation - (evaluation % interval));
  build.check(
    `Trinity rounds explorer.eval_interval=${evaluation} to ${rewritten}, a multiple of sync_interval=${interval}`,
    "trainer.test_freq",
  );
}

function checkLengths(build: Build, out: Out): void {
  const [prompt, response] = [Number(out("model.max_prompt_tokens")), Number(out("model.max_response_tokens"))];
  const whole = prompt + response;
  const most = Number(out("model.max_model_len") ?? out("explorer.rollout_model.max_model_len"));
  if (most < whole) {
    build.fail(
      `Cannot convert: max_model_len=${most} is less than prompt and response together (${prompt} + ${response}). Raise it.`,
    );
  }
  const tokens = Number(out("trainer.max_token_len_per_gpu"));
  const parallel = Number(out("trainer.ulysses_sequence_parallel_size") ?? 1);
  if (tokens * parallel < whole) {
    build.fail(
      `Cannot convert: trainer.max_token_len_per_gpu=${tokens} x ${parallel} GPUs is less than one sequence (${whole} tokens). Raise it.`,
      "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    );
  }
}
