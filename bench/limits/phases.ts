/** Decoding, training and a GRPO step of one model, next to the least time of what they count. */

import type { Device } from "../../src/engine/compute/device.ts";
import type { SampledSequence, SampleRequest, TrainBatch } from "../../src/engine/contract/backend.ts";
import type { ModelConfig } from "../../src/engine/model/config.ts";
import type { LanguageModel } from "../../src/engine/model/language_model.ts";
import { openModelShape } from "../../src/engine/model/model_shape.ts";
import { loadModel, type OpenedModel, openModel } from "../../src/engine/model/open_model.ts";
import { LocalBackend } from "../../src/train/backend/local/backend.ts";
import { fullBatch } from "../../src/train/backend/local/plan/run_shape.ts";
import { accumulateLoss } from "../../src/train/backend/local/policy_loss.ts";
import { leastSeconds, type Machine } from "../cost/machines.ts";
import { type CountedPhase, countPhases, loraOf } from "../cost/phases.ts";
import { check, count, heading, time } from "../harness.ts";
import { CLIPPED_LOSS, OPTIM } from "../model_bench.ts";

export interface Size {
  readonly config: ModelConfig;
  readonly promptTokens: number;
  /** Of a training pass. */
  readonly passTokens: number;
  /** Of each answer of a GRPO step. */
  readonly answerTokens: number;
  readonly loraRank: number;
}

interface Work {
  readonly folder: string;
  readonly size: Size;
  readonly machine: Machine;
}

const STEPS = 32;
const GROUPS = 8;
const GROUP_SIZE = 8;
/** Of the shared prompt of a group. */
const QUESTION_TOKENS = 16;

export async function timePhases(device: Device, work: Work): Promise<void> {
  const { folder, size, machine } = work;
  const { promptTokens, passTokens, loraRank, config } = size;
  const shape = await openModelShape(folder);
  const named = { name: "", shape, promptTokens, passTokens, loraRank };
  const counted = await countPhases(named, device.info);
  const least = (name: string) => leastOf(counted.find((it) => it.name.startsWith(name))!, machine);
  heading(`${config.layers} layers of width ${config.hiddenSize}, weights in bfloat16, adapter of rank ${loraRank}`);
  const opened = await openModel(folder);
  const frozen = await loadModel(device, opened, { frozen: true });
  for (const rows of [1, 64]) {
    const what = `decoding step, ${rows} ${rows === 1 ? "row" : "rows"} of ${promptTokens}`;
    notify(what, await decodingSeconds(frozen, size, rows), least(what));
  }
  frozen.release();
  const trained = await loadModel(device, opened, { lora: loraOf(loraRank), maxTokensPerPass: passTokens });
  const batch = fullBatch(passTokens, { longest: promptTokens, loss: CLIPPED_LOSS });
  const pass = await time(() => accumulateLoss(trained, batch, CLIPPED_LOSS), { rounds: 3 });
  notify(`training pass of ${passTokens} tokens`, pass.median, least("training pass"));
  await timeStep(trained, opened, size);
  trained.release();
}

function leastOf({ dispatches }: CountedPhase, machine: Machine): number {
  return dispatches.reduce((sum, it) => sum + leastSeconds(it, machine), 0);
}

function notify(what: string, seconds: number, least: number): void {
  count({ what, value: 1000 * seconds, unit: "ms" });
  count({ what: `${what}, against its least time`, value: seconds / least, unit: "times" });
}

/** Of one step, from the difference between long answers and answers of one token. */
async function decodingSeconds(model: LanguageModel, { promptTokens, config }: Size, rows: number): Promise<number> {
  const answers = (max_tokens: number) => () =>
    model.sample(
      Array.from({ length: rows }, (_, seed) => request(promptOf(seed, promptTokens, config), { seed, max_tokens })),
      { weightVersion: 0 },
    );
  const first = await time(answers(1), { rounds: 3 });
  const all = await time(answers(1 + STEPS), { rounds: 3 });
  return (all.median - first.median) / STEPS;
}

/** A GRPO step: groups of answers that share a prompt, one pass over them after another, and the optimiser. */
async function timeStep(model: LanguageModel, { mark }: OpenedModel, size: Size): Promise<void> {
  const backend = new LocalBackend({ model, name: mark.folder });
  const requests = Array.from({ length: GROUPS * GROUP_SIZE }, (_, seed) =>
    request(promptOf(Math.floor(seed / GROUP_SIZE), QUESTION_TOKENS, size.config), {
      seed,
      max_tokens: size.answerTokens,
    }),
  );
  const seconds = { sampling: 0, training: 0 };
  const step = async () => {
    const start = performance.now();
    const samples = await backend.sample(requests);
    const middle = performance.now();
    const metrics = await backend.forwardBackward(batchOf(requests, samples), CLIPPED_LOSS);
    await backend.optimStep(OPTIM);
    seconds.sampling = (middle - start) / 1000;
    seconds.training = (performance.now() - middle) / 1000;
    check(Number.isFinite(metrics["actor/loss"]), "a GRPO step");
  };
  await time(step, { rounds: 1 });
  const what = `GRPO step, ${GROUPS} x ${GROUP_SIZE} x ${size.answerTokens}`;
  count({ what, value: seconds.sampling + seconds.training, unit: "s" });
  count({ what: `${what}, sampling`, value: seconds.sampling, unit: "s" });
  count({ what: `${what}, training`, value: seconds.training, unit: "s" });
}

function batchOf(requests: readonly SampleRequest[], samples: readonly SampledSequence[]): TrainBatch {
  const rows = samples.map(({ tokens, logprobs }, i) => ({ prompt: requests[i]!.prompt_ids, tokens, logprobs }));
  const offsets = [0];
  for (const { prompt, tokens } of rows) offsets.push(offsets.at(-1)! + prompt.length + tokens.length);
  return {
    tokens: Uint32Array.from(rows.flatMap(({ prompt, tokens }) => [...prompt, ...tokens])),
    mask: Uint32Array.from(rows.flatMap(({ prompt, tokens }) => [...prompt.map(() => 0), ...tokens.map(() => 1)])),
    oldLogprobs: Float32Array.from(rows.flatMap(({ prompt, logprobs }) => [...prompt.map(() => 0), ...logprobs])),
    offsets: Uint32Array.from(offsets),
    advantages: { level: "row", values: Float32Array.from(rows, (_, i) => (i % 2 ? 1 : -1)) },
  };
}

/** Prompts of different seeds share nothing. */
function promptOf(seed: number, length: number, { vocabSize }: ModelConfig): number[] {
  return Array.from({ length }, (_, t) => (seed * 7919 + t) % vocabSize);
}

function request(prompt_ids: number[], at: { seed: number; max_tokens: number }): SampleRequest {
  const { seed, max_tokens } = at;
  return { prompt_ids, seed, params: { max_tokens, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] } };
}
