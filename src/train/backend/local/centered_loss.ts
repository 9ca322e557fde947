/** The loss `score_centering` over packed rows. With each sampled target it takes the log-probs of its sampler's most likely tokens. */
import { scoreCentering } from "../../../engine/algorithm/loss/score_centering.ts";
import type { LossRequest, LossRows, SampledTargets } from "../../../engine/contract/engine.ts";
import { ConfigError } from "../../../leaves/errors.ts";
import { checkInputs, targetText } from "./loss_inputs.ts";

/** The engine's name of the loss. */
export const SCORE_CENTERING = "score_centering";

const NEEDS = "advantages";
/** Clients send the sampler's log-probs with every loss; this one has them from the sampler itself. `mask`: 0 where no penalty counts. */
const MAY: readonly string[] = ["logprobs", "mask"];

/** Checks the settings and the inputs by name. @throws ConfigError */
export function checkCentering({ config }: LossRequest, inputs: readonly string[]): { readonly klCoeff: number } {
  const { kl_coeff: klCoeff = 0, ...others } = config;
  const [unknown] = Object.keys(others);
  if (unknown !== undefined)
    throw wrong(`it has no setting ${unknown.slice(0, 100)}. Its setting is kl_coeff`, "loss_fn_config");
  if (typeof klCoeff !== "number" || !(klCoeff >= 0 && Number.isFinite(klCoeff)))
    throw wrong(`kl_coeff must be a number that is at least 0 (${klCoeff})`, "loss_fn_config");
  if (!inputs.includes(NEEDS))
    throw wrong(`${NEEDS} is missing. Every datum's loss_fn_inputs must hold target_tokens, ${NEEDS}`, NEEDS);
  const other = inputs.find((input) => input !== NEEDS && !MAY.includes(input));
  if (other === undefined) return { klCoeff };
  throw wrong(
    `it has no input ${other.slice(0, 100)}. Its inputs are target_tokens, ${[NEEDS, ...MAY].join(", ")}`,
    other,
  );
}

const NOTHING = -1;
const NO_TOKENS: Uint32Array = new Uint32Array();

/** Tokens that the model scores: each target, and where they move the loss its sampler's most likely tokens. */
interface Scored {
  readonly targets: Uint32Array;
  readonly positions: Uint32Array;
}

/** Position of a target's log-probs among the scored tokens. */
interface Places {
  /** Target t has the scored tokens [first[t], first[t+1]), its sampler's last; [R+1]. */
  readonly first: Uint32Array;
  /** Its own token, [R]. It is scored once: where its sampler's tokens have it, there. */
  readonly own: Uint32Array;
  /** Index of the sampled target, [R]; -1 where nothing was sampled, or nothing of it moves the loss. */
  readonly sampled: Int32Array;
}

export class CenteredLoss {
  readonly scored: Scored;
  /** Sequence i has the scored tokens [offsets[i], offsets[i+1]). */
  readonly offsets: Uint32Array;
  /** Log-probs of every target, [R]; 0 where no pass has come. */
  readonly logprobs: Float32Array;
  private readonly klCoeff: number;
  private readonly rows: LossRows;
  private readonly places: Places;
  private readonly scoresAll: boolean;
  private readonly values: Float64Array;

  /**
   * @param options.scoresAll false: targets that nobody sampled are not scored, and their log-probs stay 0. Default true.
   * @throws ConfigError for a setting or an input that the loss does not take, for rows without what was sampled, and for an advantage
   * where nothing was
   */
  constructor(loss: LossRequest, rows: LossRows, { scoresAll = true }: { scoresAll?: boolean } = {}) {
    this.klCoeff = checkCentering(loss, Object.keys(rows.inputs)).klCoeff;
    if (rows.targetOffsets) throw wrong("target_tokens must be [length], one target per position", "target_tokens");
    const { sampled } = rows;
    if (!sampled)
      throw wrong(
        "the request does not say which targets were sampled. Clients name it stable_reinforce, of a server that was started with --stable-reinforce score_centering",
        "loss_fn",
      );
    checkInputs(SCORE_CENTERING, rows);
    this.rows = rows;
    this.scoresAll = scoresAll;
    this.logprobs = new Float32Array(rows.targets.length);
    this.values = new Float64Array(rows.targets.length);
    const { scored, places } = this.place(sampled);
    this.scored = scored;
    this.places = places;
    this.offsets = rows.offsets.map((first) => places.first[first]!);
  }

  private place(sampled: SampledTargets): { scored: Scored; places: Places } {
    const { targets: targetIds, inputs } = this.rows;
    const count = targetIds.length;
    const most = count + sampled.tokens.length;
    const [targets, positions] = [new Uint32Array(most), new Uint32Array(most)];
    const first = new Uint32Array(count + 1);
    const places = { first, own: new Uint32Array(count), sampled: new Int32Array(count).fill(NOTHING) };
    for (let [t, s, end] = [0, 0, 0]; t < count; t++) {
      const isSampled = sampled.at[s] === t;
      const advantage = inputs.advantages![t]!;
      if (!isSampled && advantage !== 0) throw this.notSampled(t, advantage);
      first[t + 1] = end;
      if (!isSampled && !this.scoresAll) continue;
      const moves = isSampled && (advantage !== 0 || this.klCoeffAt(t) !== 0);
      const top = moves ? topOf(sampled, s).tokens : NO_TOKENS;
      const inTop = top.indexOf(targetIds[t]!);
      if (inTop < 0) targets[end++] = targetIds[t]!;
      places.own[t] = inTop < 0 ? end - 1 : end + inTop;
      targets.set(top, end);
      end += top.length;
      positions.fill(t, first[t], end);
      first[t + 1] = end;
      if (moves) places.sampled[t] = s;
      if (isSampled) s++;
    }
    const end = first[count];
    return { scored: { targets: targets.subarray(0, end), positions: positions.subarray(0, end) }, places };
  }

  get metrics(): Record<string, number> {
    return { "loss:sum": this.values.reduce((sum, value) => sum + value, 0) };
  }

  /** The loss at every target, [R]; 0 where no pass has come. */
  get elementwise(): Float32Array {
    return Float32Array.from(this.values);
  }

  /** Takes the scored tokens of whole sequences, from `first` on. @returns their slopes d(loss)/d(logprob), as many as `logprobs`. */
  take(logprobs: Float32Array, first: number): Float32Array {
    const slopes = new Float32Array(logprobs.length);
    const end = first + logprobs.length;
    for (let t = this.scored.positions[first] ?? 0; (this.places.first[t + 1] ?? end + 1) <= end; t++)
      this.takeTarget(t, { logprobs, slopes, first });
    return slopes;
  }

  private takeTarget(t: number, at: { logprobs: Float32Array; slopes: Float32Array; first: number }): void {
    if (this.places.first[t] === this.places.first[t + 1]) return;
    const place = this.places.own[t]! - at.first;
    const logprob = at.logprobs[place]!;
    this.logprobs[t] = logprob;
    const s = this.places.sampled[t]!;
    if (s === NOTHING) return;
    const sampler = topOf(this.rows.sampled!, s).logprobs;
    const end = this.places.first[t + 1]! - at.first;
    const policy = at.logprobs.subarray(end - sampler.length, end);
    const advantage = this.rows.inputs.advantages![t]!;
    const slopes = new Float64Array(sampler.length);
    const value = scoreCentering({ logprob, advantage, klCoeff: this.klCoeffAt(t), sampler, policy }, slopes);
    // The target's own slope comes on top of that of the same token among its sampler's.
    const inTop = place - (end - sampler.length);
    if (inTop >= 0) slopes[inTop]! -= advantage;
    else at.slopes[place] = -advantage;
    if (![value, ...slopes].every((number) => Number.isFinite(Math.fround(number))))
      throw this.overflow(t, { logprob, advantage });
    this.values[t] = value;
    at.slopes.set(slopes, end - sampler.length);
  }

  private klCoeffAt(t: number): number {
    return this.rows.inputs.mask?.[t] === 0 ? 0 : this.klCoeff;
  }

  private notSampled(t: number, advantage: number): ConfigError {
    return wrong(
      `the advantage at ${this.placeOf(t)} must be 0, because its target was not sampled (${advantage})`,
      "advantages",
    );
  }

  private overflow(t: number, { logprob, advantage }: { logprob: number; advantage: number }): ConfigError {
    return wrong(`it is not finite at ${this.placeOf(t)} (log-prob ${logprob}, advantage ${advantage})`, "advantages");
  }

  private placeOf(t: number): string {
    return targetText(this.rows, { t, datum: this.rows.offsets.findLastIndex((offset) => offset <= t) });
  }
}

function wrong(why: string, path: string): ConfigError {
  return new ConfigError(`Cannot take the loss ${SCORE_CENTERING}: ${why}.`, { path });
}

function topOf({ offsets, tokens, logprobs }: SampledTargets, s: number) {
  const range = [offsets[s]!, offsets[s + 1]!] as const;
  return { tokens: tokens.subarray(...range), logprobs: logprobs.subarray(...range) };
}
