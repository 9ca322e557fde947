/** A model on a counting device, and the phases of a run on it: the real code, which says what it holds. */
import { CountingDevice, type Peak } from "../../../../engine/compute/counting.ts";
import type { DeviceInfo } from "../../../../engine/compute/device.ts";
import type { LossSpec, TrainBatch } from "../../../../engine/contract/backend.ts";
import { RECORDED_TOP } from "../../../../engine/contract/engine.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../../engine/model/language_model.ts";
import type { ModelShape } from "../../../../engine/model/model_shape.ts";
import { ValueModel } from "../../../../engine/model/value_model.ts";
import { SampledRecords } from "../../stable/sampled_records.ts";
import { isStable } from "../../stable/stable_rows.ts";
import { besidePolicy, type CriticOptions, ownCritic } from "../critic.ts";
import { accumulateLoss } from "../policy_loss.ts";
import { scorerOptions } from "../reward_scorer.ts";
import { accumulateStable } from "../stable_loss.ts";
import { TEACHER_OPTIONS } from "../teacher_options.ts";
import { accumulateTopk } from "../topk_loss.ts";
import { accumulateValueLoss } from "../value_loss.ts";
import { batchTokens, fullBatch, fullRequests, longestRunSequence, type RunShape } from "./run_shape.ts";

/** Subject of a rehearsal: a model's shape, how it is held, and the work. */
export interface Setup {
  readonly model: ModelShape;
  readonly options: LanguageModelOptions;
  readonly shape: RunShape;
  /** A critic that trains too. */
  readonly critic?: CriticSetup | undefined;
  /** A reward model that is opened with the run and scores its rollouts. */
  readonly rewardModel?: ModelShape | undefined;
  /** A teacher that is opened with the run and scores its tokens. It samples nothing, and so has no cache. */
  readonly teacher?: ModelShape | undefined;
  /** The device to stand in for. */
  readonly info: DeviceInfo;
}

/** Trained parts of a critic, and the model that it starts from where that is not the policy's. */
export interface CriticSetup extends Pick<CriticOptions, "lora"> {
  readonly model?: ModelShape | undefined;
}

/** A run to plan. What `options` leaves open is chosen: the tokens of a pass, recomputation, the cache. */
export interface PlanRequest extends Setup {
  /** Bytes that live buffers may hold together. */
  readonly budget: number;
  /**
   * Settings that advice must not name, because what is opened fixes them (the rank of a checkpoint); `all` where no
   * configuration is read, as by a server. Default: none.
   */
  readonly fixedSettings?: readonly string[] | "all" | undefined;
}

const VALUE_LOSS = { loss_agg_mode: "token-mean", cliprange_value: 1 };
const NO_STEP = { learning_rate: 0, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 1 };

interface Counted {
  readonly device: CountingDevice;
  readonly shape: RunShape;
  readonly load: Peak;
  readonly critic: ValueModel | undefined;
  readonly teacher: LanguageModel | undefined;
}

export class Rehearsal {
  /** Longest sequence of the run, tokens. */
  readonly longest: number;
  readonly load: Peak;
  /** Memory that is held between the phases. */
  readonly held: Peak;
  private readonly device: CountingDevice;
  private readonly model: LanguageModel;
  private readonly critic: ValueModel | undefined;
  private readonly teacher: LanguageModel | undefined;
  private readonly shape: RunShape;

  private constructor(model: LanguageModel, { device, shape, load, critic, teacher }: Counted) {
    this.model = model;
    this.critic = critic;
    this.teacher = teacher;
    this.device = device;
    this.shape = shape;
    this.load = load;
    this.longest = longestRunSequence(shape, model.contextLength);
    device.startPhase();
    this.held = device.phasePeak;
  }

  /** Opens the model, and with it all that a run keeps from its first step to its last. */
  static async open(setup: Setup): Promise<Rehearsal> {
    const { model: of, options, shape, info, critic: its, rewardModel } = setup;
    const device = new CountingDevice({ info });
    const teacher = setup.teacher && (await unreadTeacher(device, setup.teacher));
    if (rewardModel) ValueModel.unread(device, rewardModel, scorerOptions(rewardModel.adapters?.[0]));
    const model = LanguageModel.unread(device, of, options);
    const critic = its && shape.isTrained ? unreadCritic(model, { options, ...its }) : undefined;
    const load = device.phasePeak;
    if (critic) void critic.optimizer;
    if (shape.isTrained) void model.optimizer;
    if (shape.usesReference) model.freezeReference();
    // The first use of the weights makes the copies that they are computed with.
    void model.weights;
    await model.logprobs(fullBatch(2, { longest: 2, loss: shape.loss }), { policy: "current", temperature: 1 });
    if (shape.overlaps) {
      const published = model.copyPolicy();
      published.update();
      published.weights().prepare();
    }
    const pair = fullBatch(2, { longest: 2, loss: shape.loss });
    await critic?.values(pair);
    return new Rehearsal(model, { device, shape, load, critic, teacher });
  }

  /**
   * Training on `tokens` tokens, forward and backward, and the step of the optimiser.
   * @param context tokens of each sequence that are not trained on. A pass of short prompts has next to none.
   */
  train(tokens: number, context = 1): Promise<Peak> {
    const { longest, shape } = this;
    const batch = fullBatch(tokens, { longest, loss: shape.loss, context });
    return this.during(async () => {
      if (!shape.topk?.isAlone) await accumulateMain(this.model, batch, shape.loss);
      if (shape.topk) await accumulateTopk(this.model, withTop(batch, shape.topk.k, this.model), shape.topk.loss);
      await this.model.optimStep(NO_STEP);
      if (!this.critic) return;
      const zeros = new Float32Array(tokens);
      await accumulateValueLoss(this.critic, { ...batch, oldValues: zeros, returns: zeros }, VALUE_LOSS);
      await this.critic.optimStep(NO_STEP);
    });
  }

  /** The log-probs of `tokens` tokens. @param context as in {@link train} */
  score(tokens: number, context = 1): Promise<Peak> {
    const { longest, shape } = this;
    const batch = fullBatch(tokens, { longest, loss: shape.loss, context });
    const options = { policy: "current", temperature: 1, mask: batch.mask } as const;
    return this.during(async () => {
      await this.model.logprobs(batch, options);
      await this.critic?.values(batch);
      await this.teach(context);
    });
  }

  /** A pass of the teacher. The likeliest tokens are read from the logits that log-probs take too. */
  private async teach(context: number): Promise<void> {
    const { teacher, shape } = this;
    if (!teacher) return;
    const longest = Math.min(this.longest, teacher.contextLength);
    const tokens = Math.max(Math.min(TEACHER_OPTIONS.maxTokensPerPass, batchTokens(shape, longest)), longest);
    const { mask, ...rows } = fullBatch(tokens, { longest, loss: shape.loss, context });
    await teacher.logprobs(rows, { policy: "current", temperature: 1, mask });
  }

  /** `count` sequences together. */
  sample(count: number): Promise<Peak> {
    const { longest, shape } = this;
    const requests = fullRequests(count, { shape, longest, vocabSize: this.model.config.vocabSize });
    return this.during(() => this.model.sample(requests, { weightVersion: 0 }));
  }

  private async during(work: () => Promise<unknown>): Promise<Peak> {
    this.device.startPhase();
    await work();
    return this.device.phasePeak;
  }
}

/** A teacher, with what its first use makes. */
async function unreadTeacher(device: CountingDevice, shape: ModelShape): Promise<LanguageModel> {
  const teacher = LanguageModel.unread(device, shape, { ...TEACHER_OPTIONS, label: "teacher weights" });
  const pair = { tokens: new Uint32Array(2), offsets: Uint32Array.of(0, 2) };
  await teacher.logprobs(pair, { policy: "current", temperature: 1 });
  return teacher;
}

/** A batch with k tokens of a teacher in each place. */
function withTop(batch: TrainBatch, most: number, { config }: LanguageModel): TrainBatch {
  const k = Math.min(most, config.vocabSize);
  const length = batch.tokens.length * k;
  return { ...batch, teacherTop: { k, tokens: new Uint32Array(length), logprobs: new Float32Array(length) } };
}

/** The loss of a run, from samples of which all is recorded. */
function accumulateMain(model: LanguageModel, batch: TrainBatch, spec: LossSpec): Promise<unknown> {
  if (!isStable(spec)) return accumulateLoss(model, batch, spec);
  // Every advantage counts, because a target without one scores its own token alone.
  const values = new Float32Array(batch.offsets.length - 1).fill(1);
  const { rolloutIsWeights: _, ...plain } = batch;
  const records = recordsOf(batch, { spec, model });
  return accumulateStable(model, { ...plain, advantages: { level: "row", values } }, { spec, records });
}

/**
 * Returns the records made when the rows of a {@link fullBatch} were sampled. Its tokens are equal, so that a record
 * serves all rows of its prompt's length.
 */
function recordsOf(
  { offsets, mask }: TrainBatch,
  { spec: { temperature }, model }: { spec: LossSpec; model: LanguageModel },
): SampledRecords {
  const records = new SampledRecords({ mostBytes: Number.POSITIVE_INFINITY });
  const { vocabSize } = model.config;
  const k = Math.min(RECORDED_TOP, vocabSize);
  const recorded = new Set<number>();
  for (const [row, end] of offsets.subarray(1).entries()) {
    const length = end - offsets[row]!;
    const context = mask.subarray(offsets[row], end).indexOf(1);
    if (context < 0 || recorded.has(context)) continue;
    recorded.add(context);
    const [prompt, tokens] = [new Array<number>(context).fill(0), new Array<number>(length - context).fill(0)];
    const top = { k, tokens: new Uint32Array(tokens.length * k), logprobs: new Float32Array(tokens.length * k) };
    // The row's own token is not among them where the vocabulary has others: it is scored too.
    for (let i = 0; i < top.tokens.length; i++) top.tokens[i] = ((i % k) + 1) % vocabSize;
    records.add({ sequenceId: String(row), prompt, tokens, logprobs: tokens, temperature, top });
  }
  return records;
}

function unreadCritic(
  policy: LanguageModel,
  { model, lora, options }: CriticSetup & Pick<Setup, "options">,
): ValueModel {
  if (!model) return besidePolicy(policy, { lora });
  return ValueModel.unread(policy.device, model, ownCritic(policy, { lora, ...options }));
}
