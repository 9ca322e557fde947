/** AdamW with gradient clipping by the global norm. Buffers are flat; counts and offsets in multiples of 4. */
import { defineKernel } from "../../compute/kernel.ts";
import { quads, THREADS, threads } from "./rows.ts";

/** Workgroups of {@link squareSum}: fixed, so that the norm repeats bit for bit on every device. */
export const NORM_PARTIALS = 64;

/**
 * partials[partials_offset + g] = sum of x^2 over the elements of workgroup g, g < 64. Each buffer, or window of one, gives
 * 64 partials; {@link clipFactor} adds them all.
 */
export const squareSum = defineKernel({
  name: "optimizer/square_sum",
  bindings: { x: "read f32", partials: "write f32" },
  params: { count: "u32", partials_offset: "u32" },
  grid: ({ count }) => {
    quads(count, "count");
    return [NORM_PARTIALS];
  },
  reference({ x, partials }, { count, partials_offset }) {
    // Interleaved by vec4 over 64 workgroups of 64 threads, as in the shader.
    const sums = new Float64Array(NORM_PARTIALS);
    for (let i = 0; i < count; i++) sums[(i >> 8) % NORM_PARTIALS]! += x[i]! * x[i]!;
    partials.set(sums, partials_offset);
  },
  tolerance: { relative: 1e-5, absolute: 1e-9 },
});

/** Floats of the buffer `clip`: norm, factor, 1 where the norm is not finite (else 0), spare. */
export const CLIP_FLOATS = 4;

/**
 * clip = [norm, min(1, max_norm / (norm + 1e-6)), 0]; the factor is 1 where max_norm <= 0. Where the norm is not finite,
 * clip = [norm, 0, 1], and {@link adamw} changes nothing.
 * @see torch.nn.utils.clip_grad_norm_
 */
export const clipFactor = defineKernel({
  name: "optimizer/clip_factor",
  bindings: { partials: "read f32", clip: "write f32" },
  params: { count: "u32", max_norm: "f32" },
  grid: () => [1],
  reference({ partials, clip }, { count, max_norm }) {
    let sum = 0;
    for (let i = 0; i < count; i++) sum += partials[i]!;
    const norm = Math.sqrt(sum);
    const finite = Number.isFinite(Math.fround(norm));
    clip[0] = norm;
    clip[1] = !finite ? 0 : max_norm > 0 ? Math.min(1, max_norm / (norm + 1e-6)) : 1;
    clip[2] = finite ? 0 : 1;
  },
  tolerance: { relative: 1e-5, absolute: 1e-9 },
});

/**
 * One step over elements [first, first + count) of flat buffers: decay, then
 * mean += mean_rate (g - mean), variance += variance_rate (g^2 - variance),
 * parameter -= rate / correction1 * mean / (sqrt(variance / correction2) + epsilon), g = gradient * clip[1].
 * mean_rate = 1 - beta1 and variance_rate = 1 - beta2, computed in f64, because 1 - 0.999 in f32 is off by 5e-5.
 * correction = 1 - beta^step. Nothing changes where clip[2] is set.
 * @see https://arxiv.org/abs/1711.05101, torch.optim.AdamW
 */
export const adamw = defineKernel({
  name: "optimizer/adamw",
  bindings: {
    gradient: "read f32",
    clip: "read f32",
    parameter: "write f32",
    mean: "write f32",
    variance: "write f32",
  },
  params: {
    first: "u32",
    count: "u32",
    learning_rate: "f32",
    mean_rate: "f32",
    variance_rate: "f32",
    epsilon: "f32",
    weight_decay: "f32",
    correction1: "f32",
    correction2: "f32",
  },
  constants: THREADS,
  grid: ({ first, count }, constants) => {
    quads(first, "first");
    return threads(quads(count, "count"), constants);
  },
  reference({ gradient, clip, parameter, mean, variance }, params) {
    if (clip[2] !== 0) return;
    const { first, count, learning_rate, mean_rate, variance_rate, epsilon, weight_decay } = params;
    const decay = 1 - learning_rate * weight_decay;
    const rate = learning_rate / params.correction1;
    for (let i = first; i < first + count; i++) {
      const g = gradient[i]! * clip[1]!;
      const m = mean[i]! + mean_rate * (g - mean[i]!);
      const s = variance[i]! + variance_rate * (g * g - variance[i]!);
      mean[i] = m;
      variance[i] = s;
      parameter[i] = parameter[i]! * decay - (rate * m) / (Math.sqrt(s / params.correction2) + epsilon);
    }
  },
  tolerance: { relative: 1e-5, absolute: 1e-7 },
});
