/** A backend as a plain object: three functions, and defaults for all that it leaves out. */
import type { Backend, Metrics, ModelDescription } from "../contract/backend.ts";
import { ConfigError, UnsupportedError } from "../errors.ts";

type Required = Pick<Backend, "sample" | "forwardBackward" | "optimStep">;

/** What a backend must have, and what it may have. */
export interface BackendDefinition
  extends Required,
    Partial<Omit<Backend, keyof Required | "model" | "weightVersion">> {
  /** Default: the tokenizer's vocabulary and ends, no bound on the context, no count of parameters. */
  readonly model?: Partial<ModelDescription>;
}

const REQUIRED: readonly (keyof Required)[] = ["sample", "forwardBackward", "optimStep"];

/**
 * Completes a backend. What is left out:
 *
 * | part | without it |
 * |---|---|
 * | `tokenizer` | rollouts on token ids alone, whose `model_response` is empty; text is refused when a rollout asks for it |
 * | `model` | see {@link BackendDefinition} |
 * | `logprobs` | refused when they are needed: a KL term, `bypass_mode=false`, several mini-batches |
 * | `save`, `load` | a checkpoint holds no weights (they are the service's); going on from one is refused |
 * | `freezeReference`, `close` | nothing is done |
 *
 * The optimiser steps are counted here, as `weightVersion`. Give a plain object: members of a class's prototype are
 * not copied.
 *
 * @throws {ConfigError} that names the function that is missing
 */
export function defineBackend(definition: BackendDefinition): Backend {
  const { name = "custom", tokenizer } = definition;
  for (const part of REQUIRED) {
    if (typeof definition[part] === "function") continue;
    throw new ConfigError(`Cannot define the backend ${name} as it must have the function ${part}`, {
      path: part,
    });
  }
  let weightVersion = 0;
  const model: ModelDescription = {
    name,
    vocabSize: tokenizer?.vocabSize ?? 0,
    contextLength: Number.POSITIVE_INFINITY,
    eosTokenIds: tokenizer?.eosTokenIds ?? [],
    parameters: 0,
    trainableParameters: 0,
    ...definition.model,
  };
  const lacks = (capability: string, advice: string) => async (): Promise<never> => {
    throw new UnsupportedError(
      `Cannot go on as the backend ${name} has no ${capability}: ${advice}, or give defineBackend one`,
      { part: name, capability },
    );
  };
  const optimStep = async (params: Parameters<Backend["optimStep"]>[0]): Promise<Metrics> => {
    const metrics = await definition.optimStep(params);
    weightVersion++;
    return metrics;
  };
  const fused = definition.forwardBackwardAndOptimStep?.bind(definition);
  const atOnce = fused && {
    forwardBackwardAndOptimStep: async (...args: Parameters<typeof fused>): Promise<Metrics[]> => {
      const metrics = await fused(...args);
      weightVersion++;
      return metrics;
    },
  };
  const own = {
    logprobs: lacks(
      "logprobs",
      "set rllm.algorithm.kl_beta=0, rollout_correction.bypass_mode=true and training.num_minibatches=1",
    ),
    save: async () => {},
    load: lacks("load", "start anew with training.resume_mode=disable"),
    close: () => {},
  };
  return {
    ...own,
    ...definition,
    name,
    model,
    get weightVersion() {
      return weightVersion;
    },
    optimStep,
    ...atOnce,
  };
}
