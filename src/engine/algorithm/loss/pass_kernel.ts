/** The fused pass over the tokens of a loss as a kernel: the frame of loss/policy.wgsl with the function of one loss. */
import { type Constants, defineKernel, type Kernel, type ParamTypes } from "../../compute/kernel.ts";
import { passToken, type RowTable, type Streams, SUM_COUNT } from "./pass.ts";
import type { LossSettings, TokenFunction } from "./token.ts";

/** Workgroups of the pass, whatever its size: sums are added in one order on every device. */
export const PASS_GROUPS = 256;
const PASS_THREADS = 64;
const PASS_LANES = 16;

/** Binding of a stream: nowhere, in one of the slots 1 to 3, or in the output, which is read before it is written. */
export const SLOT = { absent: 0, inOutput: 4 } as const;

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

const PASS_PARAMS = {
  tokens: "u32",
  row_stride: "u32",
  partials_at: "u32",
  threshold_at: "u32",
  weight: "f32",
  kl_weight: "f32",
  kl_coef: "f32",
  kl_bound: "f32",
} as const;

export const PASS_CONSTANTS = {
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

/** The pass of one loss; its params hold those of the loss's form too. */
export type PassKernel = Kernel<typeof PASS_BINDINGS, typeof PASS_PARAMS>;

interface PassKernelOptions {
  readonly name: string;
  readonly source: () => Promise<string>;
  /** The fields of `Settings`. */
  readonly params: ParamTypes;
  readonly token: TokenFunction;
}

export function passKernel({ name, source, params, token }: PassKernelOptions): PassKernel {
  return defineKernel({
    name,
    source,
    bindings: PASS_BINDINGS,
    params: { ...PASS_PARAMS, ...params },
    constants: PASS_CONSTANTS,
    tolerance: { relative: 2e-5, absolute: 2e-6 },
    grid: () => [PASS_GROUPS],
    reference: (buffers, values, constants) =>
      referencePass(buffers, values as unknown as PassValues & LossSettings, { constants, token }),
  }) as PassKernel;
}

type PassBuffers = {
  readonly [K in keyof typeof PASS_BINDINGS]: K extends "mask" | "row_of_token" ? Uint32Array : Float32Array;
};
type PassValues = { readonly [K in keyof typeof PASS_PARAMS]: number };

function referencePass(
  buffers: PassBuffers,
  params: PassValues & LossSettings,
  { constants, token }: { constants: Constants; token: TokenFunction },
): void {
  const { workspace, dlogprobs, mask } = buffers;
  const { tokens } = params;
  const slots = [undefined, buffers.slot1, buffers.slot2, buffers.slot3, dlogprobs];
  const stream = (name: keyof typeof PASS_CONSTANTS) => slots[constants[name]!];
  const keys = bitsOf(stream("SELECT"));
  const threshold = bitsOf(workspace)[params.threshold_at]!;
  const inputs = passInputs(buffers, params, { stream, byRow: constants.ROW_ADVANTAGE === 1 });
  const options = {
    token,
    params,
    weight: { uniform: params.weight, byRow: constants.ROW_WEIGHTED === 1 },
    klWeight: { uniform: params.kl_weight, byRow: constants.KL_ROW_WEIGHTED === 1 },
    klCode: constants.KL!,
    klCoef: params.kl_coef,
    klBound: params.kl_bound,
    couplesRows: constants.ROW_COUPLED === 1,
    weighsSlopes: constants.WEIGHTED_SLOPE === 1,
    selected: keys.length > 0 ? (t: number) => keys[t]! >= threshold : undefined,
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
  const advantages = stream("ADVANTAGE");
  const rowAdvantage = column(1);
  const streams = {
    logprobs,
    mask,
    old: stream("OLD"),
    isWeights: stream("WEIGHT"),
    ref: stream("REF"),
    advantage: (t: number, row: number) => (advantages ? advantages[t]! : byRow ? rowAdvantage[row]! : 0),
    row: (t: number) => row_of_token[t]!,
  };
  return { streams, table: { weight: column(0), a: column(2), b: column(3) } };
}

/** The bits of floats; none of an absent stream. */
function bitsOf(floats: Float32Array = new Float32Array()): Uint32Array {
  return new Uint32Array(floats.buffer, floats.byteOffset, floats.length);
}
