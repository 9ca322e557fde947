/** The pass of preference losses as a kernel: sums of rows, the loss of each unit, and its gradient, in one pass over the tokens. */
import { defineKernel, folded, type Kernel } from "../../compute/kernel.ts";
import { loadShader } from "../../compute/shader.ts";
import { joinShader, paddedParams } from "../loss/settings_struct.ts";
import type { PairFunction, PreferenceSettings } from "./pair.ts";
import { COLUMNS, takeUnit } from "./unit.ts";

const BINDINGS = {
  logprobs: "read f32",
  ref_logprobs: "read f32",
  mask: "read u32",
  nll_mask: "read u32",
  offsets: "read u32",
  labels: "read u32",
  rows: "write f32",
  dlogprobs: "write f32",
} as const;

const PARAMS = { units: "u32", scale: "f32", nll_scale: "f32", padding: "f32" } as const;

/** The pass of one loss; its params hold those of the loss's form too. */
export type PreferenceKernel = Kernel<typeof BINDINGS, typeof PARAMS>;

interface PreferenceKernelOptions {
  readonly name: string;
  /** The fields of `Settings`. */
  readonly params: readonly string[];
  readonly wgsl: string;
  readonly pair: PairFunction;
}

/** The frame of preference/pairs.wgsl with the function of one loss. */
export function preferenceKernel({ name, params, wgsl, pair }: PreferenceKernelOptions): PreferenceKernel {
  return defineKernel({
    name: `preference/${name}`,
    source: async () => joinShader(wgsl, params, await loadShader("preference/pairs")),
    bindings: BINDINGS,
    params: { ...PARAMS, ...paddedParams(params) },
    constants: { PAIRS: 1, REFERENCE: 1, MEAN: 0 },
    tolerance: { relative: 2e-5, absolute: 2e-6 },
    grid: ({ units }) => folded(units!),
    reference(buffers, values, { PAIRS, REFERENCE, MEAN }) {
      const {
        units,
        scale,
        nll_scale: nllScale,
        ...settings
      } = values as { readonly [K in keyof typeof PARAMS]: number };
      const loss = { unit: PAIRS === 1 ? "pair" : "row", hasReference: REFERENCE === 1, isMean: MEAN === 1 } as const;
      const plan = { loss: { ...loss, form: { pair } }, params: settings as PreferenceSettings, scale, nllScale };
      const { ref_logprobs, nll_mask: nllMask, rows, dlogprobs } = buffers;
      const streams = { ...buffers, nllMask, ref: loss.hasReference ? ref_logprobs : undefined };
      const found = Array.from({ length: units }, (_, unit) => takeUnit(unit, { streams, plan }, dlogprobs)).flat();
      for (const [row, sums] of found.entries())
        rows.set(
          COLUMNS.map((column) => sums[column]),
          COLUMNS.length * row,
        );
    },
  }) as PreferenceKernel;
}
