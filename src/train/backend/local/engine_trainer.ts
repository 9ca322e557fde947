/** One client's training run on the local engine: an adapter, or a full copy of the model. */
import type { Metrics, OptimParams } from "../../../engine/contract/backend.ts";
import type { EnginePolicy, LossRequest, LossRows, Trainer, TrainerConfig } from "../../../engine/contract/engine.ts";
import type { LanguageModel } from "../../../engine/model/language_model.ts";
import type { ModelMark } from "../../../engine/model/open_model.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { CenteredLoss, SCORE_CENTERING } from "./centered_loss.ts";
import { loadLocalCheckpoint, saveLocalCheckpoint } from "./checkpoint.ts";
import { EngineLoss } from "./engine_loss.ts";
import { LocalPolicy } from "./engine_policy.ts";
import { computeHostLoss } from "./host_loss.ts";
import { submitted } from "./submitted.ts";

export class LocalTrainer implements Trainer {
  readonly config: TrainerConfig;
  private readonly model: LanguageModel;
  private readonly base: ModelMark;
  /** This trainer and its policies: the last one to be released releases the model. */
  private users = 1;

  constructor(model: LanguageModel, of: { config: TrainerConfig; base: ModelMark }) {
    this.model = model;
    this.config = of.config;
    this.base = of.base;
  }

  get bytes(): number {
    // Values, gradients and two moments.
    return 4 * this.model.trainable.byteLength;
  }

  get step(): number {
    return this.model.step;
  }

  async forwardBackward(
    rows: LossRows,
    { loss, forwardOnly }: { loss: LossRequest; forwardOnly: boolean },
  ): Promise<{ logprobs: Float32Array; losses: Float32Array; metrics: Metrics }> {
    const taken = requestedLoss(loss, rows);
    const scored = { ...rows, ...taken.scored };
    const { temperature = 1 } = loss;
    if (forwardOnly) {
      const { logprobs } = await this.model.score(scored, { temperature });
      taken.take(logprobs, 0);
    } else
      await this.model.accumulate(scored, {
        temperature,
        usesEntropies: false,
        loss: (outputs) => computeHostLoss(this.model.device, taken, outputs),
      });
    return { logprobs: taken.logprobs, losses: taken.elementwise, metrics: taken.metrics };
  }

  async clearGradients(): Promise<void> {
    this.model.optimizer.gradients.clear();
    await this.model.device.submit();
  }

  async optimStep(params: OptimParams): Promise<Metrics> {
    checkOptim(params);
    const norm = await this.model.optimStep(params);
    if (!Number.isNaN(norm)) return { grad_norm: norm, learning_rate: params.learning_rate };
    throw new ConfigError(
      "Cannot take the optimiser step: the gradient's norm is not finite. The weights are unchanged and the gradient is cleared; look for extreme weights, advantages or log-probs.",
    );
  }

  freeze(): Promise<EnginePolicy> {
    const policy = this.model.freeze();
    this.users++;
    const release = () => {
      policy.release();
      this.leave();
    };
    return submitted(this.model.device, new LocalPolicy(this.model, { ...policy, release }));
  }

  save(dir: string, { optimizer }: { optimizer: boolean }): Promise<void> {
    return saveLocalCheckpoint(dir, { model: this.model, base: this.base, optimizer });
  }

  load(dir: string, { optimizer }: { optimizer: boolean }): Promise<void> {
    return loadLocalCheckpoint(dir, this.model, { optimizer, base: this.base });
  }

  release(): void {
    this.leave();
  }

  private leave(): void {
    this.users--;
    if (this.users === 0) this.model.release();
  }
}

/** The loss of a request. `scored`: the tokens that it takes them of, where they are not the targets. */
type RequestedLoss = (EngineLoss | CenteredLoss) & { readonly scored?: CenteredLoss["scored"] };

function requestedLoss(loss: LossRequest, rows: LossRows): RequestedLoss {
  return loss.name === SCORE_CENTERING ? new CenteredLoss(loss, rows) : new EngineLoss(loss, rows);
}

/** Limits of f32: beyond them an epsilon becomes 0, or a step turns weights into NaN. */
const LEAST_EPS = 1e-30;
const MOST_RATE = 100;

function checkOptim(params: OptimParams): void {
  const isFloat = (value: number) => value >= 0 && Number.isFinite(Math.fround(value));
  const isRate = (value: number) => value >= 0 && value <= MOST_RATE;
  const isShare = (value: number) => value >= 0 && Math.fround(value) < 1;
  const rules: readonly (readonly [keyof OptimParams, string, (value: number) => boolean])[] = [
    ["learning_rate", `in [0, ${MOST_RATE}]`, isRate],
    ["beta1", "in [0, 1)", isShare],
    ["beta2", "in [0, 1)", isShare],
    ["eps", `in [${LEAST_EPS}, 1]`, (value) => value >= LEAST_EPS && value <= 1],
    ["weight_decay", `in [0, ${MOST_RATE}]`, isRate],
    ["grad_clip_norm", "at least 0 and in the range of f32", isFloat],
  ];
  for (const [name, rule, holds] of rules)
    if (!holds(params[name]))
      throw new ConfigError(`Cannot take the optimiser step: ${name} must be a number ${rule} (${params[name]}).`, {
        path: name,
      });
}
