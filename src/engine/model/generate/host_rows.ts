/**
 * Rows that the host takes part in at every step: those whose constraint limits the next token, so that it fills their mask, and those that report
 * alternatives, whose logits it reads. They are decoded apart from the others, a step at a time, so that only they pay for it.
 */
import type { Buffer, Data } from "../../compute/device.ts";
import type { TopLogprob } from "../../contract/backend.ts";
import { samplingSettings } from "../kernels/sample.ts";
import { logitStride, logitWindows } from "../logit_windows.ts";
import type { Scratch } from "../scratch.ts";
import { selectTop } from "../train/top_logprobs.ts";
import type { Transformer } from "../transformer.ts";
import { runForSequence, type Sequence } from "./sequence.ts";

/** Buffers of a step of such rows, one window of logits at most. */
export interface HostRows {
  /** [rows, stride], before masks. */
  readonly logits: Buffer;
  /** [rows, words] and the logits under them. Absent where no row has a constraint. */
  readonly mask?: { readonly bits: Buffer; readonly words: number; readonly masked: Buffer };
  /** The same for all rows. */
  readonly inverseTemperature: number;
  readonly entropies: Buffer;
  readonly logSumExps: Buffer;
}

/** Whether the host takes part in the next step of a sequence. */
export function needsHost({ isMasked, request }: Sequence): boolean {
  return isMasked || (request.top_logprobs ?? 0) > 0;
}

/** 1 / temperature as the log-probabilities of the sequence are defined. */
function inverseTemperatureOf({ request }: Sequence): number {
  return samplingSettings(request.params)[3]!;
}

/** Sequences that are drawn together: those without the host first, then the others by temperature, a window at most. */
export function drawGroups(model: Transformer, sequences: readonly Sequence[]): (readonly Sequence[])[] {
  if (!sequences.some(needsHost)) return [sequences];
  const free = sequences.filter((sequence) => !needsHost(sequence));
  const groups = free.length > 0 ? [free] : [];
  const byTemperature = new Map<number, Sequence[]>();
  for (const sequence of sequences.filter(needsHost)) {
    const key = inverseTemperatureOf(sequence);
    byTemperature.set(key, [...(byTemperature.get(key) ?? []), sequence]);
  }
  for (const group of byTemperature.values()) {
    const most = logitWindows(model, group.length)[0]!.rows;
    for (let from = 0; from < group.length; from += most) groups.push(group.slice(from, from + most));
  }
  return groups;
}

/** Buffers of a group. `undefined` for sequences without the host. */
export function hostRows(model: Transformer, group: readonly Sequence[], scratch: Scratch): HostRows | undefined {
  if (!needsHost(group[0]!)) return undefined;
  const { vocabSize } = model.config;
  const size = group.length * logitStride(vocabSize);
  const hasMask = group.some(({ isMasked }) => isMasked);
  const bits = hasMask ? masksOf(group, vocabSize) : undefined;
  return {
    logits: scratch.floats(size, "logits"),
    ...(bits && {
      mask: {
        bits: scratch.upload(bits, "token masks"),
        words: bits.length / group.length,
        masked: scratch.floats(size, "masked logits"),
      },
    }),
    inverseTemperature: inverseTemperatureOf(group[0]!),
    entropies: scratch.floats(group.length, "entropies"),
    logSumExps: scratch.floats(group.length, "log-sum-exps"),
  };
}

/** [rows, words]; all bits of rows without a limit are set. */
function masksOf(group: readonly Sequence[], vocabSize: number): Uint32Array {
  const words = Math.ceil(vocabSize / 32);
  const bits = new Uint32Array(group.length * words).fill(0xffffffff);
  for (const [row, sequence] of group.entries()) {
    const mask = bits.subarray(row * words, (row + 1) * words);
    if (sequence.isMasked) runForSequence(sequence, () => sequence.constraint?.fill(mask));
    // A row that failed is drawn once more beside the others, and its token is dropped.
    if (sequence.failure) mask.fill(0xffffffff);
  }
  return bits;
}

/** The most likely tokens of a row that asks for them, under the distribution of its log-probs. */
export function topOf(
  { request }: Sequence,
  at: { row: number; logits: Data; rows: HostRows; vocabSize: number },
): TopLogprob[] {
  const k = Math.min(request.top_logprobs ?? 0, at.vocabSize);
  const from = at.row * logitStride(at.vocabSize);
  const scaled = (at.logits as Float32Array).slice(from, from + at.vocabSize);
  const { inverseTemperature } = at.rows;
  // A loop: Float32Array.from with a function takes five times as long as all else here.
  if (inverseTemperature !== 1) for (let id = 0; id < scaled.length; id++) scaled[id]! *= inverseTemperature;
  const top = { tokens: new Uint32Array(k), logprobs: new Float32Array(k).fill(-Infinity) };
  selectTop(scaled, top);
  return Array.from(top.tokens, (token, i) => ({ token, logprob: top.logprobs[i]! }));
}
