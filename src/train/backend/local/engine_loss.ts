/** Tinker's losses as in its service: sums over every target, without a mask and without normalisation. */
import { type LossPlan, planLoss, type ServiceForm } from "../../../engine/algorithm/loss/definition.ts";
import { builtInLosses, customLossNames, findLoss } from "../../../engine/algorithm/loss/losses.ts";
import type { LossSettings, TokenFunction } from "../../../engine/algorithm/loss/token.ts";
import type { LossRequest, LossRows } from "../../../engine/contract/engine.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { checkInputs, targetText } from "./loss_inputs.ts";

/** The losses of Tinker's protocol, by `loss_fn`. */
const PUBLISHED: ReadonlyMap<string, ServiceForm & { readonly loss: string }> = new Map(
  builtInLosses().flatMap(({ name, elsewhere }) =>
    elsewhere?.tinker && name.startsWith("tinker.")
      ? [[elsewhere.tinker.name, { ...elsewhere.tinker, loss: name }]]
      : [],
  ),
);

/** Inputs of a loss of the operator's own. */
const CUSTOM_INPUTS: Pick<ServiceForm, "needs" | "may"> = { needs: ["logprobs", "advantages"], may: [] };

/** Tinker's losses. */
export const ENGINE_LOSSES: readonly string[] = [...PUBLISHED.keys()];

/** The losses that clients can name: Tinker's, and those that modules of the operator have registered. */
export function engineLosses(): readonly string[] {
  return [...new Set([...ENGINE_LOSSES, ...customLossNames()])];
}

/**
 * A loss over packed rows, computed one pass at a time in float64. Inputs named like the clip thresholds replace those of
 * the configuration, per token. Cross-entropy takes several targets per position; without `weights` each weighs 1.
 */
export class EngineLoss {
  /** Log-probs of every target, [R]; 0 where no pass has come. */
  readonly logprobs: Float32Array;
  /** Sequence i has the targets [offsets[i], offsets[i+1]). */
  readonly offsets: Uint32Array;
  private readonly name: string;
  private readonly rows: LossRows;
  private readonly token: TokenFunction;
  private readonly couplesRows: boolean;
  private readonly params: LossSettings;
  /** The loss at every target, [R]: a pass that is repeated counts once. */
  private readonly values: Float64Array;
  /** A custom loss's own numbers that have names, and their values at every target, [R] each. */
  private readonly own: readonly { readonly name: string; readonly at: number; readonly values: Float64Array }[];

  /** @throws ConfigError for an unknown loss or setting, and for a missing, non-finite or wrongly sized input. */
  constructor(loss: LossRequest, rows: LossRows) {
    const { name } = loss;
    const plan = checkLoss(loss, Object.keys(rows.inputs));
    this.name = name;
    this.rows = rows;
    this.token = plan.form.token;
    this.couplesRows = plan.rows !== undefined;
    this.params = plan.params;
    this.offsets = rows.targetOffsets ?? rows.offsets;
    this.logprobs = new Float32Array(rows.targets.length);
    this.values = new Float64Array(rows.targets.length);
    const names = PUBLISHED.has(name) ? [] : plan.metrics;
    this.own = names.flatMap((input, at) =>
      input === null ? [] : [{ name: input, at, values: new Float64Array(rows.targets.length) }],
    );
    checkValues(name, rows);
  }

  /** `loss:sum`, and the means of a custom loss's own numbers over all targets. */
  get metrics(): Record<string, number> {
    const count = Math.max(this.values.length, 1);
    const mean = (values: Float64Array) => values.reduce((sum, value) => sum + value, 0) / count;
    return {
      "loss:sum": this.sum,
      ...Object.fromEntries(this.own.map((input) => [`${input.name}:mean`, mean(input.values)])),
    };
  }

  /** The loss of the passes so far. */
  get sum(): number {
    return this.values.reduce((sum, value) => sum + value, 0);
  }

  /** The loss at every target, [R]; 0 where no pass has come. */
  get elementwise(): Float32Array {
    return Float32Array.from(this.values);
  }

  /** Takes the targets of whole sequences, from `first` on. @returns their slopes d(loss)/d(logprob), as many as `logprobs`. */
  take(logprobs: Float32Array, first: number): Float32Array {
    this.logprobs.set(logprobs, first);
    const slopes = new Float32Array(logprobs.length);
    const { offsets } = this;
    for (let i = this.sequenceOf(first); (offsets[i] ?? first) < first + logprobs.length; i++) {
      const [start, end] = [offsets[i]!, Math.min(offsets[i + 1]!, first + logprobs.length)];
      const a = this.couplesRows ? this.meanLogRatio(start, end) : 0;
      for (let t = start; t < end; t++) slopes[t - first] = this.takeToken(t, a);
    }
    return slopes;
  }

  private takeToken(t: number, a: number): number {
    const { weights, advantages = weights } = this.rows.inputs;
    const logprob = this.logprobs[t]!;
    const token = { logprob, d: this.logRatio(t), advantage: advantages ? advantages[t]! : 1, a, b: 0 };
    const { value, slope, metrics } = this.token(token, this.paramsAt(t));
    if (!Number.isFinite(Math.fround(slope)) || !Number.isFinite(value)) throw this.overflow(t, token);
    this.values[t] = value;
    for (const { at, values } of this.own) values[t] = metrics[at] ?? 0;
    return slope;
  }

  private logRatio(t: number): number {
    const { logprobs: old } = this.rows.inputs;
    return old ? this.logprobs[t]! - old[t]! : 0;
  }

  /**
   * Returns the mean log-ratio of the targets first <= t < end that the mask marks. @throws ConfigError where it marks
   * none and some are trained on.
   */
  private meanLogRatio(first: number, end: number): number {
    const { sequence_ratio_mask: mask, advantages } = this.rows.inputs;
    let [sum, count] = [0, 0];
    for (let t = first; t < end; t++)
      if (mask![t] !== 0) {
        sum += this.logRatio(t);
        count++;
      }
    if (count > 0) return sum / count;
    if (advantages!.subarray(first, end).every((advantage) => advantage === 0)) return 0;
    throw new ConfigError(
      `Cannot take the loss ${this.name}: sequence_ratio_mask marks no token of datum ${this.sequenceOf(first)}. Set it to 1 at the sampled tokens.`,
      { path: "sequence_ratio_mask" },
    );
  }

  private sequenceOf(t: number): number {
    return this.offsets.findLastIndex((offset) => offset <= t);
  }

  private paramsAt(t: number): LossSettings {
    const { clip_low_threshold: low, clip_high_threshold: high } = this.rows.inputs;
    if (!low && !high) return this.params;
    return { ...this.params, ...(low && { low: low[t]! }), ...(high && { high: high[t]! }) };
  }

  private overflow(t: number, values: { logprob: number; d: number; advantage: number }): ConfigError {
    const datum = this.sequenceOf(t);
    return new ConfigError(
      `Cannot take the loss ${this.name}: it is not finite at ${targetText(this.rows, { t, datum })} (log-prob ${values.logprob}, log-ratio ${values.d}, advantage or weight ${values.advantage}).`,
    );
  }
}

/**
 * Checks a loss and its inputs by name.
 * @throws ConfigError for an unknown loss or setting, an input that the loss does not have, or one that it lacks.
 */
export function checkLoss({ name, config }: LossRequest, inputs: readonly string[]): LossPlan {
  if (name === "stable_reinforce")
    throw new ConfigError(
      "Cannot take the loss stable_reinforce: its formula is not published. Choose importance_sampling, cispo or gspo, or start the server with --stable-reinforce score_centering, which serves the name by a published method that fits its description.",
      { path: "loss_fn" },
    );
  const losses = engineLosses();
  if (!losses.includes(name))
    throw new ConfigError(
      `Cannot take the loss ${JSON.stringify(name.slice(0, 100))}: known are ${losses.join(", ")}. The server's operator adds others (defineLoss) with \`grpu serve tinker --import FILE\`.`,
      { path: "loss_fn" },
    );
  const published = PUBLISHED.get(name);
  // Text is refused there, as a value of another type.
  const plan = planLoss(findLoss(published?.loss ?? name), config as Readonly<Record<string, number>>);
  if (!published) checkCustom(name, plan);
  const { needs, may } = published ?? CUSTOM_INPUTS;
  const missing = needs.find((input) => !inputs.includes(input));
  if (missing !== undefined)
    throw new ConfigError(
      `Cannot take the loss ${name}: ${missing} is missing. Every datum's loss_fn_inputs must hold ${["target_tokens", ...needs].join(", ")}.`,
      { path: missing },
    );
  const unknown = inputs.find((input) => !needs.includes(input) && !may.includes(input));
  if (unknown === undefined) return plan;
  throw new ConfigError(
    `Cannot take the loss ${name}: it has no input ${unknown.slice(0, 100)}. Its inputs are ${["target_tokens", ...needs, ...may].join(", ")}.`,
    { path: unknown },
  );
}

/** @throws ConfigError for a registered loss that is more than a function of single tokens. */
function checkCustom(name: string, { rows, selection, aggregation }: LossPlan): void {
  if (!rows && !selection && !aggregation) return;
  const what = rows ? "a statistic of its row" : selection ? "a selection of tokens" : "an aggregation of its own";
  throw new ConfigError(
    `Cannot take the loss ${name}: it needs ${what}, and the server sums functions of single tokens. Register it with defineLoss.`,
    { path: "loss_fn" },
  );
}

function checkValues(name: string, rows: LossRows): void {
  if (rows.targetOffsets && name !== "cross_entropy")
    throw new ConfigError(
      `Cannot take the loss ${name}: target_tokens must be [length], one target per position. Only cross_entropy takes several.`,
      { path: "target_tokens" },
    );
  checkInputs(name, rows);
}
