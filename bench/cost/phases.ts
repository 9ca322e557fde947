/** The phases of training and sampling, run on a device that counts. */

import type { DeviceInfo } from "../../src/engine/compute/device.ts";
import type { SampleRequest } from "../../src/engine/contract/backend.ts";
import { LanguageModel, type LanguageModelOptions } from "../../src/engine/model/language_model.ts";
import { ATTENTION_TARGETS, MLP_TARGETS } from "../../src/engine/model/lora.ts";
import type { ModelShape } from "../../src/engine/model/model_shape.ts";
import { fullBatch } from "../../src/train/backend/local/plan/run_shape.ts";
import { accumulateLoss } from "../../src/train/backend/local/policy_loss.ts";
import { processorSeconds } from "../harness.ts";
import { CLIPPED_LOSS } from "../model_bench.ts";
import { CostDevice, type Dispatch } from "./counted.ts";
import { type Cost, costOf } from "./machines.ts";

export interface CountedModel {
  readonly name: string;
  readonly shape: ModelShape;
  /** Tokens of a prompt, and tokens that a sequence holds while it is decoded. */
  readonly promptTokens: number;
  /** Tokens of a long sequence, which one row and 64 rows decode too. */
  readonly longContext?: number;
  /** Tokens of a training pass, in sequences of `promptTokens`. */
  readonly passTokens: number;
  /** Rank of the adapter that trains; all weights without it. */
  readonly loraRank?: number;
}

export interface CountedPhase {
  readonly name: string;
  readonly cost: Cost;
  readonly dispatches: readonly Dispatch[];
  /** Seconds of the processor in which this process recorded the work, in ascending order. The driver's encoding comes on top. */
  readonly recording: readonly number[];
}

/** A step of decoding is a sixteenth of a chunk. */
const STEPS = 16;
const ROUNDS = 3;

/** Samples with weights as its files have them, as a server does; trains an adapter over these, or all weights. Prefill of 8 prompts, decoding of 1 and of 64 rows, also at the long context and with the adapter beside, and a training pass. */
export async function countPhases(model: CountedModel, info: DeviceInfo): Promise<CountedPhase[]> {
  // One chunk of steps; pipelined ones are shorter, with a dispatch more each.
  const sampler = open(model, info, { frozen: true, pipelined: false });
  return [
    await prefill(sampler, model, 8),
    await decode(sampler, model, 1),
    await decode(sampler, model, 64),
    ...(await decodeLong(sampler, model)),
    ...(await decodeAdapted(model, info)),
    await train(model, info),
  ];
}

interface Opened {
  readonly device: CostDevice;
  readonly language: LanguageModel;
}

function open({ shape }: CountedModel, info: DeviceInfo, options: LanguageModelOptions = {}): Opened {
  const device = new CostDevice({ info });
  return { device, language: LanguageModel.unread(device, shape, options) };
}

async function prefill(opened: Opened, model: CountedModel, count: number): Promise<CountedPhase> {
  const { promptTokens } = model;
  opened.device.context = promptTokens;
  const counted = await repeat(opened, () => sample(opened, model, { count, maxTokens: 1 }));
  return phase(`prefill, ${count} prompts of ${promptTokens}`, counted);
}

/** The difference between a chunk of steps after a prefill, and the prefill alone. */
async function decode(opened: Opened, model: CountedModel, rows: number): Promise<CountedPhase> {
  opened.device.context = model.promptTokens;
  const first = await repeat(opened, () => sample(opened, model, { count: rows, maxTokens: 1 }));
  const both = await repeat(opened, () => sample(opened, model, { count: rows, maxTokens: 1 + STEPS }));
  const rest = {
    dispatches: both.dispatches.slice(first.dispatches.length),
    readBacks: both.readBacks - first.readBacks,
    recording: both.recording.map((seconds, i) => Math.max(seconds - first.recording[i]!, 0)),
  };
  return phase(`decoding step, ${rows} ${rows === 1 ? "row" : "rows"} of ${model.promptTokens}`, rest, STEPS);
}

async function decodeLong(opened: Opened, model: CountedModel): Promise<CountedPhase[]> {
  const { longContext: promptTokens } = model;
  if (!promptTokens) return [];
  const long = { ...model, promptTokens };
  return [await decode(opened, long, 1), await decode(opened, long, 64)];
}

/** As the adapter that trains is sampled. */
async function decodeAdapted(model: CountedModel, info: DeviceInfo): Promise<CountedPhase[]> {
  if (!model.loraRank) return [];
  const opened = open(model, info, { lora: loraOf(model.loraRank), foldAdapter: false, pipelined: false });
  const named = (it: CountedPhase) => ({ ...it, name: `${it.name}, LoRA ${model.loraRank}` });
  return [named(await decode(opened, model, 1)), named(await decode(opened, model, 64))];
}

/** An adapter on all matrices. */
export function loraOf(rank: number) {
  return { rank, alpha: 2 * rank, targets: [...ATTENTION_TARGETS, ...MLP_TARGETS] };
}

async function train(model: CountedModel, info: DeviceInfo): Promise<CountedPhase> {
  const { loraRank: rank, passTokens, promptTokens } = model;
  const opened = open(model, info, { ...(rank && { lora: loraOf(rank) }), maxTokensPerPass: passTokens });
  opened.device.context = promptTokens;
  const batch = fullBatch(passTokens, { longest: promptTokens, loss: CLIPPED_LOSS });
  const counted = await repeat(opened, () => accumulateLoss(opened.language, batch, CLIPPED_LOSS));
  return phase(`training pass of ${passTokens} tokens${rank ? `, LoRA ${rank}` : ""}`, counted);
}

interface Counted {
  readonly dispatches: readonly Dispatch[];
  readonly readBacks: number;
  readonly recording: readonly number[];
}

/** Counts the last of several runs, because the first makes what later ones keep. */
async function repeat({ device }: Opened, work: () => Promise<unknown>): Promise<Counted> {
  const recording: number[] = [];
  await work();
  for (let round = 0; round < ROUNDS; round++) {
    device.restart();
    recording.push(await processorSeconds(work));
  }
  recording.sort((a, b) => a - b);
  return { dispatches: [...device.dispatches], readBacks: device.readBacks, recording };
}

function sample(
  { language }: Opened,
  { promptTokens, shape }: CountedModel,
  { count, maxTokens }: { count: number; maxTokens: number },
): Promise<unknown> {
  const { vocabSize } = shape.config;
  const requests: SampleRequest[] = Array.from({ length: count }, (_, seed) => ({
    // Prompts that differ share nothing.
    prompt_ids: Array.from({ length: promptTokens }, (_, t) => (seed * 7919 + t) % vocabSize),
    seed,
    // Reads of a device that counts are zeros, and no stop token is one.
    params: { max_tokens: maxTokens, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] },
  }));
  return language.sample(requests, { weightVersion: 0 });
}

function phase(name: string, { dispatches, readBacks, recording }: Counted, per = 1): CountedPhase {
  return {
    name,
    cost: costOf(dispatches, { readBacks, per }),
    dispatches: dispatches.slice(0, dispatches.length / per),
    recording: recording.map((seconds) => seconds / per),
  };
}
