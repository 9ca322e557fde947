/** {@link topkPlace} at every place of a pass, on a device. */
import type { Buffer, Data, Device, Recorded } from "../../compute/device.ts";
import { defineKernel, folded } from "../../compute/kernel.ts";
import { F32_BYTES } from "../f32.ts";
import { type TopkPlan, topkPlace } from "./topk.ts";

export const topkDistillation = defineKernel({
  name: "distill/topk",
  bindings: {
    student: "read f32",
    teacher: "read f32",
    weights: "read f32",
    values: "write f32",
    masses: "write f32",
    dlogprobs: "write f32",
  },
  params: { rows: "u32", k: "u32", reverse: "u32", tail: "u32", log_min: "f32", most: "f32" },
  constants: { WORKGROUP: 64 },
  // 1 - mass loses digits in f32: the tail's term has those of the mass outside the top k.
  tolerance: { relative: 1e-4, absolute: 1e-5 },
  grid: ({ rows }, { WORKGROUP }) => folded(Math.ceil(rows / WORKGROUP!)),
  reference({ student, teacher, weights, values, masses, dlogprobs }, { rows, k, ...plan }) {
    for (let row = 0; row < rows; row++) {
      const rowOf = <A extends Float32Array>(array: A) => array.subarray(row * k, (row + 1) * k);
      const slopes = rowOf(dlogprobs);
      const { value, mass } = topkPlace(rowOf(student), rowOf(teacher), { plan, slopes });
      for (let i = 0; i < k; i++) slopes[i]! *= weights[row]!;
      values[row] = value;
      masses[row] = mass;
    }
  },
});

/** The losses of a pass and the student's masses, [rows] each. */
export interface TopkValues {
  readonly values: Float32Array;
  readonly masses: Float32Array;
}

/** Losses in GPU buffers: the weighted gradient per token, [rows, k], and the values to read back. */
export interface RecordedTopk extends Recorded<TopkValues> {
  readonly dlogprobs: Buffer;
}

/**
 * Records the losses over the teacher's top tokens. Nothing waits.
 * @param batch.student log-probs of the student, [rows, k], on the device
 * @param batch.teacher those of the teacher, [rows, k]
 * @param batch.weights share of each place in the loss, [rows]
 */
export function recordTopk(
  device: Device,
  plan: TopkPlan,
  batch: { readonly student: Buffer; readonly teacher: Float32Array; readonly weights: Float32Array },
): RecordedTopk {
  const rows = batch.weights.length;
  const k = rows === 0 ? 0 : batch.teacher.length / rows;
  const inputs = {
    teacher: device.upload(batch.teacher, "teacher logprobs"),
    weights: device.upload(batch.weights, "weights"),
  };
  const values = device.alloc(rows * F32_BYTES, "distillation losses");
  const masses = device.alloc(rows * F32_BYTES, "student masses");
  const dlogprobs = device.alloc(rows * k * F32_BYTES, "dlogprobs");
  const buffers = { student: batch.student, ...inputs, values, masses, dlogprobs };
  device.dispatch(topkDistillation, { buffers, params: { rows, k, ...plan } });
  return {
    dlogprobs,
    reads: [values, masses].map((buffer) => ({ buffer, type: "f32", length: rows }) as const),
    decode: ([read, mass]: readonly Data[]) => ({ values: read as Float32Array, masses: mass as Float32Array }),
    release: () => device.release(...Object.values(inputs), values, masses, dlogprobs),
  };
}
