/** The dispatches that advantage estimators are made of, over one batch on the device. */

import { UnsupportedError } from "../../../leaves/errors.ts";
import type { Buffer, Device } from "../../compute/device.ts";
import { F32_BYTES } from "../f32.ts";
import type { RowCounts } from "../rows.ts";
import {
  type AdvantageBuffers,
  type AdvantageRecorder,
  type EstimatorSettings,
  type GroupForm,
  needs,
  type Recorded,
  type RowsForm,
} from "./definition.ts";
import type { Groups } from "./groups.ts";
import {
  advantageBaseline,
  advantageFixed,
  advantageGroup,
  advantagePower,
  advantageRows,
  advantageSums,
  advantageWhiten,
  GROUP_MODE,
  MAX_FIXED_GROUP,
  ROWS_MODE,
  SUMS_BYTES,
  WHITEN_MODE,
} from "./kernels.ts";
import { WHITENING_EPSILON } from "./whitening.ts";

/** Input of {@link recordAdvantages}: buffers on the device, and the layout of rows and groups on the host. */
export interface AdvantageInput {
  readonly buffers: AdvantageBuffers;
  readonly groups: Groups;
  readonly counts: RowCounts;
  readonly settings?: EstimatorSettings | undefined;
}

/** One recording of one estimator. {@link finish} returns what it uploaded: recorded work still sees it. */
export class EstimatorRecorder implements AdvantageRecorder {
  readonly device: Device;
  readonly name: string;
  readonly settings: EstimatorSettings;
  readonly input: AdvantageInput;
  readonly rows: number;
  private readonly scratch: Buffer[] = [];

  /** @param estimator its name, and its settings with their defaults filled in */
  constructor(device: Device, estimator: Pick<EstimatorRecorder, "name" | "settings">, input: AdvantageInput) {
    this.device = device;
    this.name = estimator.name;
    this.settings = estimator.settings;
    this.input = input;
    this.rows = input.counts.trained.length;
  }

  get groups(): Groups {
    return this.input.groups;
  }

  get rewardComponents(): AdvantageBuffers["rewardComponents"] {
    return this.input.buffers.rewardComponents;
  }

  finish(): void {
    this.device.release(...this.scratch);
  }

  need(field: Exclude<keyof AdvantageBuffers, "rewardComponents">): Buffer {
    return needs(this.input.buffers[field], this.name, field);
  }

  private temporary(buffer: Buffer): Buffer {
    this.scratch.push(buffer);
    return buffer;
  }

  private upload(data: Uint32Array, label: string): Buffer {
    return this.temporary(this.device.upload(data, label));
  }

  private alloc(floats: number, label: string): Buffer {
    return this.device.alloc(floats * F32_BYTES, label);
  }

  private groupOffsets(): Buffer {
    const { buffers, groups } = this.input;
    return buffers.groupOffsets ?? this.upload(groups.offsets, "group offsets");
  }

  private groupMembers(): Buffer {
    const { buffers, groups } = this.input;
    return buffers.groupMembers ?? this.upload(groups.members, "group members");
  }

  group(scores: Buffer, options: { form: GroupForm; byDeviation?: boolean; aloneIsZero?: boolean }): Buffer {
    const { groups } = this.input;
    const { form, byDeviation = false, aloneIsZero = false } = options;
    const mode = GROUP_MODE[form];
    const { ddof, epsilon } = { ddof: 1, epsilon: 0, ...this.settings } as { ddof: number; epsilon: number };
    const params = { groups: groups.offsets.length - 1, ddof, epsilon };
    const constants = { MODE: mode, BY_DEVIATION: Number(byDeviation) };
    const advantages = this.alloc(this.rows, "advantages");
    if (fitsRegisters(groups.fixedSize, mode)) {
      const fixed = { ...constants, VECTORS: groups.fixedSize / 4 };
      this.device.dispatch(advantageFixed, { buffers: { scores, advantages }, params, constants: fixed });
      return advantages;
    }
    const group_offsets = this.groupOffsets();
    const members = groups.ordered ? group_offsets : this.groupMembers();
    const lengths = mode === GROUP_MODE.length ? this.rowLengths() : group_offsets;
    this.device.dispatch(advantageGroup, {
      buffers: { scores, group_offsets, members, lengths, advantages },
      params,
      constants: { ...constants, ALONE_IS_ZERO: Number(aloneIsZero), ORDERED: Number(groups.ordered) },
    });
    return advantages;
  }

  private rowLengths(): Buffer {
    return this.upload(this.input.counts.trained, "row lengths");
  }

  whitenByTokens(values: Buffer, level: "row" | "token"): void {
    const { counts } = this.input;
    const isRow = level === "row";
    this.whiten(values, {
      count: isRow ? this.rows : counts.tokens,
      weights: isRow ? this.rowLengths() : this.need("mask"),
      masked: !isRow,
      shift: true,
      ddof: 1,
      variance: WHITENING_EPSILON,
      deviation: 0,
    });
  }

  divideByDeviation(values: Buffer, { shift }: { shift: boolean }): void {
    const epsilon = this.settings.epsilon as number;
    this.whiten(values, { count: this.rows, masked: false, shift, ddof: 0, variance: 0, deviation: epsilon });
  }

  /** `variance` and `deviation` are the epsilons added to them; without `weights` every value weighs 1. */
  private whiten(
    values: Buffer,
    options: {
      count: number;
      weights?: Buffer;
      masked: boolean;
      shift: boolean;
      ddof: number;
      variance: number;
      deviation: number;
    },
  ): void {
    const { count, weights, ddof, variance, deviation } = options;
    const sums = this.temporary(this.device.alloc(SUMS_BYTES, "whitening sums"));
    this.device.dispatch(advantageSums, {
      // Unweighted sums bind the values in the place of weights: one buffer cannot be read and written at once.
      buffers: { values, weights: weights ?? values, sums },
      params: { count },
      constants: { WEIGHTED: Number(weights !== undefined) },
    });
    this.device.dispatch(advantageWhiten, {
      buffers: { weights: weights ?? sums, sums, values },
      params: { count, ddof, variance_epsilon: variance, deviation_epsilon: deviation },
      constants: { SHIFT: Number(options.shift), MASKED: Number(options.masked) },
    });
  }

  scaleByNonzero(values: Buffer, scores: Buffer, divisor: number): void {
    const sums = this.temporary(this.device.alloc(SUMS_BYTES, "nonzero counts"));
    const params = { count: this.rows };
    this.device.dispatch(advantageSums, {
      buffers: { values: scores, weights: scores, sums },
      params,
      constants: { NONZERO: 1, WEIGHTED: 0 },
    });
    this.device.dispatch(advantageWhiten, {
      buffers: { weights: sums, sums, values },
      params: { ...params, ddof: 0, variance_epsilon: 0, deviation_epsilon: divisor },
      constants: { MODE: WHITEN_MODE.scale },
    });
  }

  copyOfScores(): Buffer {
    const copy = this.alloc(this.rows, "advantages");
    this.device.copy(this.need("scores"), copy, this.rows * F32_BYTES);
    return copy;
  }

  backwards(form: RowsForm, options: { values?: Buffer; gamma?: number; lam?: number } = {}): Required<Recorded> {
    const { tokens } = this.input.counts;
    const { values, gamma = 1, lam = 1 } = options;
    this.refuseSeveralBindings(tokens);
    const [advantages, returns] = [this.alloc(tokens, "advantages"), this.alloc(tokens, "returns")];
    const { tokenRewards } = this.input.buffers;
    const rewards = tokenRewards ?? this.need("scores");
    const [mask, offsets] = [this.need("mask"), this.need("offsets")];
    this.device.dispatch(advantageRows, {
      buffers: { rewards, mask, offsets, values: values ?? rewards, advantages, returns },
      params: { rows: this.rows, gamma, lam },
      constants: {
        MODE: ROWS_MODE[form],
        TOKEN_REWARDS: Number(tokenRewards !== undefined),
        BASELINE: Number(values !== undefined),
      },
    });
    return { advantages, returns };
  }

  private refuseSeveralBindings(tokens: number): void {
    const held = this.device.info.limits.maxBindingBytes / F32_BYTES;
    if (tokens <= held) return;
    throw new UnsupportedError(
      `Cannot estimate ${this.name} over ${tokens} tokens at once: one binding holds ${held}. Split the batch by groups.`,
      { part: "advantages", capability: "token-level estimators over several bindings" },
    );
  }

  optimalBaseline({ compact }: { compact: boolean }): Required<Recorded> {
    const { groups, counts } = this.input;
    const { advantages, returns } = this.backwards("toGo");
    const power = this.temporary(this.alloc(counts.tokens, "score power"));
    const columns = this.temporary(this.alloc(counts.tokens, "columns"));
    const [mask, offsets] = [this.need("mask"), this.need("offsets")];
    this.scorePower({ mask, offsets, power, columns }, compact);
    this.device.clear(advantages);
    const [group_offsets, members] = [this.groupOffsets(), this.groupMembers()];
    this.device.dispatch(advantageBaseline, {
      buffers: { group_offsets, members, offsets, mask, columns, power, returns, advantages },
      params: { groups: groups.offsets.length - 1 },
      constants: { COMPACT: Number(compact), ZERO_TAIL: Number(this.settings.handle_zero_tail === true) },
    });
    return { advantages, returns };
  }

  private scorePower(table: { mask: Buffer; offsets: Buffer; power: Buffer; columns: Buffer }, compact: boolean): void {
    const [old, sum_pi_squared] = [this.need("oldLogprobs"), this.need("sumPiSquared")];
    const { rolloutIsWeights } = this.input.buffers;
    this.device.dispatch(advantagePower, {
      buffers: { old, sum_pi_squared, is_weights: rolloutIsWeights ?? old, ...table },
      params: { rows: this.rows },
      constants: { COMPACT: Number(compact), WEIGHT: Number(rolloutIsWeights !== undefined) },
    });
  }
}

/** True for groups that advantage/fixed.wgsl keeps in registers. */
function fitsRegisters(size: number, mode: number): boolean {
  return size > 0 && size % 4 === 0 && size <= MAX_FIXED_GROUP && mode <= GROUP_MODE.others;
}
