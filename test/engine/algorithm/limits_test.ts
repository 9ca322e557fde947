/** What the recordings refuse: inputs that do not fit a binding, a kernel, or the batch. */
import { expect, test } from "vitest";
import { recordAdvantages } from "../../../src/engine/algorithm/advantage/device.ts";
import { packGroups } from "../../../src/engine/algorithm/advantage/groups.ts";
import { computeAdvantages, computePolicyLoss } from "../../../src/engine/algorithm/run.ts";
import { UnsupportedError } from "../../../src/leaves/errors.ts";
import { narrowDevice } from "../../fixtures/changed_device.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { deviceLoss } from "./device_loss.ts";

const ONE_ROW = (tokens: number) => ({
  offsets: Uint32Array.of(0, tokens),
  mask: new Uint32Array(tokens).fill(1),
  logprobs: new Float32Array(tokens).fill(-1),
  groups: packGroups(Uint32Array.of(0), 1),
  scores: [1],
});

const error = (work: Promise<unknown>) =>
  work.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );

overDevices("limits", (device) => {
  // Bindings of 256 floats.
  const narrow = narrowDevice(device, 1024);
  const settings = { settings: { reset_at_masked: false } };

  test("an estimator of token advantages takes as many tokens as one binding holds, and no more", async () => {
    const name = "reinforce_plus_plus";
    const fits = await computeAdvantages(ONE_ROW(256), name, { device: narrow, ...settings });
    expect(fits.advantages).toHaveLength(256);
    const refused = await error(computeAdvantages(ONE_ROW(257), name, { device: narrow, ...settings }));
    expect(refused).toBeInstanceOf(UnsupportedError);
    expect(refused).toMatchObject({
      message: expect.stringMatching(/over 257 tokens at once: one binding holds 256\. Split the batch/),
      part: "advantages",
      capability: "token-level estimators over several bindings",
    });
  });

  test("a loss that couples tokens takes as many as one binding holds, and no more", async () => {
    // The workspace, 9,728 bytes, must fit too.
    const wider = { device: narrowDevice(device, 16_384) };
    const advantages = { level: "row", values: [1] } as const;
    const spec = { name: "gspo", loss_agg_mode: "token-mean" };
    const { dlogprobs } = await computePolicyLoss({ ...ONE_ROW(4096), advantages }, spec, wider);
    expect(dlogprobs[4095]).toBeCloseTo(-1 / 4096, 9);
    const refused = await error(computePolicyLoss({ ...ONE_ROW(4097), advantages }, spec, wider));
    expect(refused).toBeInstanceOf(UnsupportedError);
    expect(refused).toMatchObject({
      message: expect.stringMatching(/couples tokens, and one binding holds 4096/),
    });
  });

  test("gdpo over several rewards is refused, and the error names the function of the host", () => {
    const scores = device.upload(Float32Array.of(1), "scores");
    const input = {
      buffers: { scores, rewardComponents: { a: scores, b: scores } },
      groups: packGroups(Uint32Array.of(0), 1),
      counts: { tokens: 1, trained: Uint32Array.of(1), longest: 1 },
    };
    expect(() => recordAdvantages(device, "gdpo", input)).toThrow(/one reward there \(2\)\. Use advantages\(\)/);
    device.release(scores);
  });

  test("a buffer of advantages must hold what its level says", async () => {
    const batch = { ...ONE_ROW(3), advantages: { level: "token", values: [1, 1] } as const };
    const refused = await error(deviceLoss(device, batch, { name: "vanilla", loss_agg_mode: "token-mean" }));
    expect(refused).toMatchObject({
      message: expect.stringMatching(/level "token" needs one value per token \(3\), and there are 2/),
    });
  });
});
