/** The kernels of the loss: row statistics, the fused pass, the entropy bonus. */
import { type Constants, defineKernel, folded, type ParamTypes } from "../../compute/kernel.ts";
import { forEachRow } from "../../data/offsets.ts";
import { TOKEN_GROUPS } from "./aggregation.ts";
import { type LossPlan, planLoss, type RowStatistic, SETTING_NAMES, type ShaderSettings } from "./definition.ts";
import { passToken, type RowTable, type Streams, SUM_COUNT } from "./pass.ts";
import { type RowStreams, rowStatistic } from "./row_statistics.ts";
import { TINKER_LOSSES } from "./tinker.ts";
import { TRL_LOSSES } from "./trl.ts";
import { VERL_LOSSES } from "./verl.ts";

/** Workgroups of the pass, whatever its size: sums are added in one order on every device. */
export const PASS_GROUPS = 256;
const PASS_THREADS = 64;
const PASS_LANES = 16;
/** Threads of a workgroup of the entropy's pass. */
const ENTROPY_THREADS = 256;
const ROWS_PER_GROUP = 64;

/** Where a stream is bound: nowhere, in one of the slots 1 to 3, or in the output, which is read before it is written. */
export const SLOT = { absent: 0, inOutput: 4 } as const;

export const ROW_STATISTICS: readonly RowStatistic[] = [
  "mean-log-ratio",
  "geometric-mean",
  "sequence-surrogate",
  "sequence-sum-surrogate",
  "vespo",
];

/** A plan for each branch of the shader: the reference runs the same function of a token. */
const planOfCode = new Map<number, LossPlan>();
for (const loss of [...VERL_LOSSES, ...TINKER_LOSSES, ...TRL_LOSSES]) {
  const plan = planLoss(loss, "dro_beta" in loss.settings ? { dro_beta: 1 } : {});
  planOfCode.set(plan.code, plan);
}

const PASS_BINDINGS = {
  logprobs: "read f32",
  mask: "read u32",
  row_of_token: "read u32",
  slot1: "read f32",
  slot2: "read f32",
  slot3: "read f32",
  workspace: "write f32",
  dlogprobs: "write f32",
} as const;

export const PASS_PARAMS = {
  tokens: "u32",
  row_stride: "u32",
  partials_at: "u32",
  threshold_at: "u32",
  weight: "f32",
  kl_weight: "f32",
  kl_coef: "f32",
  kl_bound: "f32",
} as const;

type SettingParams = Readonly<Record<keyof ShaderSettings | "spare", "f32">>;

/** The built-in losses' settings, padded to whole vectors of four. */
const SETTING_PARAMS = Object.fromEntries([...SETTING_NAMES, "spare"].map((name) => [name, "f32"])) as SettingParams;

export const PASS_CONSTANTS = {
  LOSS: 0,
  KL: 0,
  OLD: 0,
  ADVANTAGE: 0,
  WEIGHT: 0,
  REF: 0,
  SELECT: 0,
  MASKED: 1,
  ROW_WEIGHTED: 0,
  KL_ROW_WEIGHTED: 0,
  ROW_ADVANTAGE: 0,
  ROW_COUPLED: 0,
  WEIGHTED_SLOPE: 1,
} as const;

/** A fused pass: the built-in losses, or a user's own plan joined to the same frame. */
export function definePass(options: { name: string; source?: string; plan?: LossPlan; settings?: ParamTypes }) {
  return defineKernel({
    name: options.name,
    source: options.source,
    bindings: PASS_BINDINGS,
    params: { ...PASS_PARAMS, ...((options.settings as SettingParams) ?? SETTING_PARAMS) },
    constants: PASS_CONSTANTS,
    tolerance: { relative: 2e-5, absolute: 2e-6 },
    grid: () => [PASS_GROUPS],
    reference: (buffers, params, constants) =>
      referencePass(buffers, params, constants, options.plan ?? planOfCode.get(constants.LOSS!)!),
  });
}

export const lossPolicy = definePass({ name: "loss/policy" });

type PassBuffers = {
  readonly [K in keyof typeof PASS_BINDINGS]: K extends "mask" | "row_of_token" ? Uint32Array : Float32Array;
};
type PassValues = { readonly [K in keyof typeof PASS_PARAMS | keyof SettingParams]: number };

function referencePass(buffers: PassBuffers, params: PassValues, constants: Constants, plan: LossPlan): void {
  const { workspace, dlogprobs, mask } = buffers;
  const { tokens } = params;
  const slots = [undefined, buffers.slot1, buffers.slot2, buffers.slot3, dlogprobs];
  const stream = (name: keyof typeof PASS_CONSTANTS) => slots[constants[name]!];
  const keys = bitsOf(stream("SELECT"));
  const threshold = bitsOf(workspace)[params.threshold_at]!;
  const inputs = passInputs(buffers, params, { stream, byRow: constants.ROW_ADVANTAGE === 1 });
  const options = {
    plan,
    settings: params,
    weight: { uniform: params.weight, byRow: constants.ROW_WEIGHTED === 1 },
    klWeight: { uniform: params.kl_weight, byRow: constants.KL_ROW_WEIGHTED === 1 },
    klCode: constants.KL!,
    klCoef: params.kl_coef,
    klBound: params.kl_bound,
    selected: (t: number) => keys.length > 0 && keys[t]! >= threshold,
  };
  const sums = Array.from({ length: PASS_GROUPS }, () => new Float64Array(SUM_COUNT));
  // Which workgroup adds a token: the reference keeps sums apart like the shader.
  const span = Math.ceil(Math.ceil(tokens / 4) / (PASS_THREADS * PASS_GROUPS)) * PASS_LANES;
  for (let t = 0; t < tokens; t++) {
    const group = Math.floor((Math.floor(t / 4 / span) * PASS_LANES) / PASS_THREADS);
    const isSkipped = constants.MASKED && mask[t] === 0;
    dlogprobs[t] = isSkipped ? 0 : passToken(t, inputs, options, sums[group]!);
  }
  for (const [group, part] of sums.entries()) workspace.set(part, params.partials_at + group * SUM_COUNT);
}

type StreamName = "OLD" | "ADVANTAGE" | "WEIGHT" | "REF" | "SELECT";

function passInputs(
  { logprobs, mask, row_of_token, workspace }: PassBuffers,
  { row_stride }: PassValues,
  { stream, byRow }: { stream: (name: StreamName) => Float32Array | undefined; byRow: boolean },
): { streams: Streams; table: RowTable } {
  const column = (index: number) => workspace.subarray(index * row_stride, (index + 1) * row_stride);
  const given = stream("ADVANTAGE");
  const rowAdvantage = column(1);
  const streams = {
    logprobs,
    mask,
    old: stream("OLD"),
    isWeights: stream("WEIGHT"),
    ref: stream("REF"),
    advantage: (t: number, row: number) => (given ? given[t]! : byRow ? rowAdvantage[row]! : 0),
    row: (t: number) => row_of_token[t]!,
  };
  return { streams, table: { weight: column(0), a: column(2), b: column(3) } };
}

/** The bits of floats; none of an absent stream. */
function bitsOf(floats: Float32Array = new Float32Array()): Uint32Array {
  return new Uint32Array(floats.buffer, floats.byteOffset, floats.length);
}

export const lossRows = defineKernel({
  name: "loss/rows",
  bindings: {
    logprobs: "read f32",
    old: "read f32",
    mask: "read u32",
    offsets: "read u32",
    advantages: "read f32",
    is_weights: "read f32",
    workspace: "write f32",
  },
  params: { rows: "u32", row_stride: "u32", low: "f32", high: "f32", delta: "f32" },
  constants: { STATISTIC: 0, OLD: 1, TOKEN_ADVANTAGE: 0, WEIGHT: 0 },
  tolerance: { relative: 2e-5, absolute: 2e-6 },
  grid: ({ rows }) => folded(Math.ceil(rows / ROWS_PER_GROUP)),
  reference(buffers, params, constants) {
    const { workspace, advantages, logprobs, mask } = buffers;
    const { row_stride } = params;
    const streams: RowStreams = {
      logprobs,
      mask,
      old: constants.OLD ? buffers.old : undefined,
      isWeights: constants.WEIGHT ? buffers.is_weights : undefined,
      advantage: (t: number, row: number) =>
        constants.TOKEN_ADVANTAGE ? advantages[t]! : workspace[row_stride + row]!,
    };
    const kind = ROW_STATISTICS[constants.STATISTIC!]!;
    forEachRow(buffers.offsets.subarray(0, params.rows + 1), (row, first, end) => {
      const { a, b } = rowStatistic(kind, { row, first, end }, { streams, settings: params });
      workspace[2 * row_stride + row] = a;
      workspace[3 * row_stride + row] = b;
    });
  },
});

export const lossEntropy = defineKernel({
  name: "loss/entropy",
  bindings: {
    entropy: "read f32",
    mask: "read u32",
    row_of_token: "read u32",
    workspace: "write f32",
    dentropy: "write f32",
  },
  params: { tokens: "u32", partials_at: "u32", weight: "f32", coef: "f32" },
  constants: { ROW_WEIGHTED: 0 },
  tolerance: { relative: 2e-5, absolute: 2e-6 },
  grid: () => [TOKEN_GROUPS],
  reference({ entropy, mask, row_of_token, workspace, dentropy }, params, constants) {
    const sums = new Float64Array(TOKEN_GROUPS);
    for (let t = 0; t < params.tokens; t++) {
      const isTrained = mask[t] !== 0;
      const weight = constants.ROW_WEIGHTED ? workspace[row_of_token[t]!]! : params.weight;
      const group = Math.floor((t % (ENTROPY_THREADS * TOKEN_GROUPS)) / ENTROPY_THREADS);
      sums[group]! += isTrained ? weight * entropy[t]! : 0;
      dentropy[t] = isTrained ? -params.coef * weight : 0;
    }
    workspace.set(sums, params.partials_at);
  },
});
