/** Tinker's losses as in its service: sums over every position, without a mask and without normalisation. */
import { planLoss, type ShaderSettings, shaderSettings } from "../../algorithm/loss/definition.ts";
import { findLoss } from "../../algorithm/mod.ts";
import type { LossRequest, LossRows } from "../../contract/engine.ts";
import { ConfigError } from "../../errors.ts";

/** The required inputs of each loss in addition to the targets, and the optional ones. */
const INPUTS: Readonly<Record<string, { needs: readonly string[]; may: readonly string[] }>> = {
  cross_entropy: { needs: ["weights"], may: [] },
  importance_sampling: { needs: ["logprobs", "advantages"], may: [] },
  ppo: { needs: ["logprobs", "advantages"], may: ["clip_low_threshold", "clip_high_threshold"] },
  cispo: { needs: ["logprobs", "advantages"], may: ["clip_low_threshold", "clip_high_threshold"] },
  dro: { needs: ["logprobs", "advantages"], may: [] },
};

export const ENGINE_LOSSES: readonly string[] = Object.keys(INPUTS);

type TokenFunction = ReturnType<typeof planLoss>["token"];

/**
 * A loss over packed rows, computed one pass at a time in float64. Inputs named like the clip thresholds replace those of
 * the configuration, per token.
 */
export class EngineLoss {
  /** Log-probs at every position, [T]; 0 where no pass has come. */
  readonly logprobs: Float32Array;
  private readonly name: string;
  private readonly rows: LossRows;
  private readonly token: TokenFunction;
  private readonly settings: ShaderSettings;
  /** The loss at every position, [T]: a pass that is repeated counts once. */
  private readonly values: Float64Array;

  /** @throws ConfigError for an unknown loss or setting, and for a missing, non-finite or wrongly sized input. */
  constructor({ name, config }: LossRequest, rows: LossRows) {
    if (!Object.hasOwn(INPUTS, name))
      throw new ConfigError(`Cannot take the loss ${JSON.stringify(name)}: known are ${ENGINE_LOSSES.join(", ")}.`, {
        path: "loss_fn",
      });
    const plan = planLoss(findLoss(`tinker.${name}`), config);
    this.name = name;
    this.rows = rows;
    this.token = plan.token;
    this.settings = shaderSettings(plan);
    this.logprobs = new Float32Array(rows.tokens.length);
    this.values = new Float64Array(rows.tokens.length);
    checkInputs(name, rows);
  }

  /** The loss of the passes so far. */
  get sum(): number {
    return this.values.reduce((sum, value) => sum + value, 0);
  }

  /** Takes the positions from `first` on. @returns their slopes d(loss)/d(logprob), as many as `logprobs`. */
  take(logprobs: Float32Array, first: number): Float32Array {
    this.logprobs.set(logprobs, first);
    const { weights, advantages = weights, logprobs: old } = this.rows.inputs;
    const slopes = new Float32Array(logprobs.length);
    for (let i = 0; i < logprobs.length; i++) {
      const [t, logprob] = [first + i, logprobs[i]!];
      const it = { logprob, d: old ? logprob - old[t]! : 0, advantage: advantages![t]!, a: 0, b: 0 };
      const { value, slope } = this.token(it, this.settingsAt(t));
      if (!Number.isFinite(Math.fround(slope)) || !Number.isFinite(value)) throw this.overflow(t, it);
      this.values[t] = value;
      slopes[i] = slope;
    }
    return slopes;
  }

  private settingsAt(t: number): ShaderSettings {
    const { clip_low_threshold: low, clip_high_threshold: high } = this.rows.inputs;
    if (!low && !high) return this.settings;
    return { ...this.settings, ...(low && { low: low[t] }), ...(high && { high: high[t] }) };
  }

  private overflow(t: number, it: { logprob: number; d: number; advantage: number }): ConfigError {
    const { offsets } = this.rows;
    const datum = offsets.findLastIndex((offset) => offset <= t);
    return new ConfigError(
      `Cannot take the loss ${this.name}: it is not finite at position ${t - offsets[datum]!} of datum ${datum} (log-prob ${it.logprob}, log-ratio ${it.d}, advantage or weight ${it.advantage}).`,
    );
  }
}

function checkInputs(name: string, { inputs, tokens, offsets }: LossRows): void {
  const { needs, may } = INPUTS[name]!;
  for (const input of needs)
    if (!inputs[input])
      throw new ConfigError(
        `Cannot take the loss ${name}: ${input} is missing. Every datum's loss_fn_inputs must hold ${["target_tokens", ...needs].join(", ")}.`,
        { path: input },
      );
  for (const [input, values] of Object.entries(inputs)) {
    if (!needs.includes(input) && !may.includes(input))
      throw new ConfigError(
        `Cannot take the loss ${name}: it has no input ${input}. Its inputs are ${["target_tokens", ...needs, ...may].join(", ")}.`,
        { path: input },
      );
    if (values.length !== tokens.length)
      throw new ConfigError(
        `Cannot take the loss ${name}: ${input} must have one element per token (${values.length} of ${tokens.length}).`,
        { path: input },
      );
    const broken = values.findIndex((value) => !Number.isFinite(value));
    if (broken < 0) continue;
    const datum = offsets.findLastIndex((offset) => offset <= broken);
    throw new ConfigError(
      `Cannot take the loss ${name}: ${input} must be finite (${values[broken]} at position ${broken - offsets[datum]!} of datum ${datum}).`,
      { path: input },
    );
  }
}
