/** A step that is cut into passes has the loss and the gradient of one pass, for every loss and aggregation. */
import { test } from "vitest";
import { AGGREGATION_MODES } from "../../../src/engine/algorithm/loss/aggregation.ts";
import { lossNames } from "../../../src/engine/algorithm/loss/losses.ts";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { LossSpec, TrainBatch } from "../../../src/engine/contract/backend.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import { perRow } from "../../fixtures/advantages.ts";
import { pack } from "../../fixtures/golden_model.ts";
import { expectClose, uniform } from "../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

/** These choose their tokens among those of a call, as the published ones do among those of a micro-batch. */
const BY_CALL = ["clip_cov", "kl_cov"];
const SPEC: LossSpec = { name: "vanilla", loss_agg_mode: "token-mean", settings: {}, entropy_coeff: 0, temperature: 1 };

/** Rows of unequal lengths, and one without a trained token. */
function batch(): TrainBatch {
  const next = uniform(1);
  const lengths = [9, 3, 2, 4, 12];
  const rows = lengths.map((length) => Array.from({ length }, () => Math.floor(next() * SMALL_MODEL.vocabSize)));
  const { tokens, offsets } = pack(rows);
  const mask = new Uint32Array(tokens.length).fill(1);
  for (const start of offsets.subarray(0, lengths.length)) mask[start] = 0;
  mask.fill(0, offsets[2], offsets[3]);
  const near = () => -2 - next();
  const oldLogprobs = Float32Array.from(tokens, near);
  const advantages = perRow(...lengths.map(() => next() * 2 - 1));
  return { tokens, offsets, mask, advantages, oldLogprobs, rolloutLogprobs: oldLogprobs, refLogprobs: oldLogprobs };
}

async function stepOf(spec: LossSpec, maxTokensPerPass: number) {
  const model = LanguageModel.create(new CpuDevice(), SMALL_MODEL, { seed: 3, maxTokensPerPass });
  const backend = new LocalBackend({ model, name: "test" });
  const metrics = await backend.forwardBackward(batch(), spec);
  const gradients = [...(await model.optimizer.gradients.read()).values()].map((values) => values.slice());
  backend.close();
  return { metrics, gradients };
}

/** Settings without a default. */
const needed = (name: string): LossSpec["settings"] => (name === "dro" ? { dro_beta: 0.1 } : {});

const cases = [
  ...lossNames()
    .filter((name) => !BY_CALL.includes(name))
    .map((name): [string, string, Partial<LossSpec>] => [name, "token-mean", { settings: needed(name) }]),
  ...AGGREGATION_MODES.map((mode): [string, string, Partial<LossSpec>] => ["vanilla", mode, {}]),
  ["vanilla", "seq-mean-token-sum-norm", { loss_scale_factor: 16 }] as [string, string, Partial<LossSpec>],
  ["trl.dr_grpo", "token-mean", { loss_scale_factor: 16 }] as [string, string, Partial<LossSpec>],
];

test.each(cases)("%s under %s with %j", async (name, loss_agg_mode, extra) => {
  const spec: LossSpec = { ...SPEC, name, loss_agg_mode, ...extra };
  const [whole, cut] = [await stepOf(spec, 1000), await stepOf(spec, 12)];
  for (const [i, values] of whole.gradients.entries())
    expectClose(cut.gradients[i]!, values, { relative: 1e-4, absolute: 1e-6 });
  for (const [key, value] of Object.entries(whole.metrics))
    expectClose([cut.metrics[key]!], [value], { relative: 1e-4, absolute: 1e-6 }, key);
});
