/** Tinker's gspo in the fused pass and its float64 reference, against PyTorch (see fixtures/tinker_losses/make.py). */
import { readFileSync } from "node:fs";
import { describe, expect, test } from "vitest";
import { type LossBatch, policyLoss } from "../../../src/engine/algorithm/loss/host.ts";
import { offsetsOf } from "../../../src/engine/packing/offsets.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { deviceLoss } from "./device_loss.ts";

interface Figures {
  readonly lengths: readonly number[];
  readonly policy: readonly number[];
  readonly inputs: Readonly<Record<"logprobs" | "advantages" | "sequence_ratio_mask", readonly number[]>>;
  readonly cases: Readonly<
    Record<string, { config: Record<string, number>; losses: readonly number[]; slopes: readonly number[] }>
  >;
}
const { lengths, policy, inputs, cases } = JSON.parse(
  readFileSync(new URL("../../fixtures/tinker_losses/gspo.json", import.meta.url), "utf8"),
) as Figures;

const TOLERANCE = 1e-5;
const MASK = Uint32Array.from(inputs.sequence_ratio_mask);
/** A run trains on the tokens that the service's mask marks, and on no others. */
const BATCH: LossBatch = {
  offsets: offsetsOf(lengths),
  mask: MASK,
  logprobs: [...policy],
  oldLogprobs: [...inputs.logprobs],
  advantages: { level: "token", values: Float64Array.from(inputs.advantages) },
};
const trained = (values: ArrayLike<number>) => Array.from(values).filter((_, t) => MASK[t] === 1);

function check(loss: number, slopes: ArrayLike<number>, expected: Figures["cases"][string]): void {
  const sum = trained(expected.losses).reduce((total, value) => total + value, 0);
  expect(Math.abs(loss - sum)).toBeLessThan(TOLERANCE);
  for (const [i, slope] of trained(expected.slopes).entries())
    expect(Math.abs(trained(slopes)[i]! - slope)).toBeLessThan(TOLERANCE);
}

describe.each(Object.entries(cases))("with %s thresholds", (_, expected) => {
  const spec = { name: "tinker.gspo", loss_agg_mode: "token-sum", settings: expected.config };

  test("the reference has PyTorch's loss and gradient", () => {
    const { loss, dlogprobs } = policyLoss(BATCH, spec);
    check(loss, dlogprobs, expected);
  });

  overDevices("the fused pass", (device) => {
    test("has PyTorch's loss and gradient", async () => {
      const { loss, dlogprobs } = await deviceLoss(device, BATCH, spec);
      check(loss, dlogprobs, expected);
    });
  });
});
