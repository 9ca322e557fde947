/** A backend from three functions, with defaults for everything else. */
import type { Backend, Metrics, ModelDescription } from "../../engine/contract/backend.ts";
import { ConfigError, UnsupportedError } from "../../leaves/errors.ts";

type Required = Pick<Backend, "sample" | "forwardBackward" | "optimStep">;

/** The required and the optional parts of a backend. */
export interface BackendDefinition
  extends Required,
    Partial<Omit<Backend, keyof Required | "model" | "weightVersion">> {
  /** Default: the tokenizer's vocabulary and end tokens, an unlimited context, 0 parameters. */
  readonly model?: Partial<ModelDescription>;
}

const REQUIRED: readonly (keyof Required)[] = ["sample", "forwardBackward", "optimStep"];

/**
 * Completes a backend. Parts that may be absent:
 *
 * | part | without it |
 * |---|---|
 * | `tokenizer` | rollouts work on token ids, with an empty `model_response`; a rollout that needs text fails |
 * | `model` | see {@link BackendDefinition} |
 * | `logprobs` | a KL term, `bypass_mode=false` and several mini-batches fail |
 * | `save`, `load` | checkpoints hold no weights; resuming fails |
 * | `freezeReference`, `close` | nothing happens |
 *
 * Counts the optimiser steps as `weightVersion`. Takes a plain object: members of a class's prototype are not copied.
 *
 * @throws {ConfigError} naming the missing function
 */
export function defineBackend(definition: BackendDefinition): Backend {
  const { name = "custom", tokenizer } = definition;
  for (const part of REQUIRED) {
    if (typeof definition[part] === "function") continue;
    throw new ConfigError(`Cannot define the backend ${name}: it has no function ${part}. Add one.`, {
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
      `Cannot continue: the backend ${name} has no ${capability}. ${advice}, or pass one to defineBackend.`,
      { part: name, capability },
    );
  };
  const optimStep = async (params: Parameters<Backend["optimStep"]>[0]): Promise<Metrics> => {
    const metrics = await definition.optimStep(params);
    weightVersion++;
    return metrics;
  };
  const fused = definition.forwardBackwardAndOptimStep?.bind(definition);
  const fusedStep = fused && {
    forwardBackwardAndOptimStep: async (...args: Parameters<typeof fused>): Promise<Metrics[]> => {
      const metrics = await fused(...args);
      weightVersion++;
      return metrics;
    },
  };
  const defaults = {
    logprobs: lacks(
      "logprobs",
      "Set rllm.algorithm.kl_beta=0, rollout_correction.bypass_mode=true and training.num_minibatches=1",
    ),
    save: async () => {},
    load: lacks("load", "Start again with training.resume_mode=disable"),
    close: () => {},
  };
  return {
    ...defaults,
    ...definition,
    name,
    model,
    get weightVersion() {
      return weightVersion;
    },
    optimStep,
    ...fusedStep,
  };
}
