import { describe, expect, test } from "vitest";
import { defineEstimator } from "../../src/algorithm/advantage/custom.ts";
import { packGroups } from "../../src/algorithm/advantage/groups.ts";
import { advantages } from "../../src/algorithm/advantage/host.ts";
import { defineLoss } from "../../src/algorithm/loss/custom.ts";
import { policyLoss } from "../../src/algorithm/loss/host.ts";
import { computePolicyLoss } from "../../src/algorithm/run.ts";
import { ShaderError } from "../../src/errors.ts";
import { overDevices } from "../fixtures/devices.ts";
import { deviceLoss } from "./device_loss.ts";
import { F32, furthest, lossBatch, readRows } from "./golden.ts";

const SMOOTH = `// L = -A tanh(sharpness (r - 1)) / sharpness
fn token_loss(t: Token) -> TokenLoss {
  let k = params.settings.sharpness;
  let r = exp(bounded(t.d));
  let bend = tanh(k * (r - 1.0));
  let slope = -t.advantage * (1.0 - bend * bend) * r * params.settings.scale;
  return TokenLoss(-t.advantage * bend / k * params.settings.scale, slope, vec3(count(r > 1.0), 0.0, 0.0));
}`;

await defineLoss({
  name: "smooth",
  settings: { sharpness: 4, scale: 1 },
  metrics: ["share_up", null, null],
  token: ({ d, advantage }, { sharpness, scale }) => {
    const r = Math.exp(d);
    const bend = Math.tanh(sharpness * (r - 1));
    return {
      value: ((-advantage * bend) / sharpness) * scale,
      slope: -advantage * (1 - bend * bend) * r * scale,
      metrics: [r > 1 ? 1 : 0, 0, 0],
    };
  },
  wgsl: SMOOTH,
});

await defineLoss({
  name: "broken",
  settings: {},
  wgsl: `// Two lines of comment,
// then a mistake on line 4.
fn token_loss(t: Token) -> TokenLoss {
  let slope = t.advantage * undefined_name;
  return TokenLoss(slope, slope, vec3(0.0));
}`,
});

await defineLoss({
  name: "host_only",
  settings: {},
  token: ({ advantage, logprob }) => ({ value: -advantage * logprob, slope: -advantage, metrics: [0, 0, 0] }),
});

const batch = lossBatch(readRows("pairs"), true);
const spec = { name: "smooth", loss_agg_mode: "seq-mean-token-mean", settings: { sharpness: 2 } };

overDevices("a user's loss", (device) => {
  test.each([2, 7])("equals its host form, settings and metrics too (sharpness %f)", async (sharpness) => {
    const own = { ...spec, settings: { sharpness } };
    const want = policyLoss(batch, own);
    const got = await deviceLoss(device, batch, own);
    expect(furthest([got.loss], [want.loss], F32)).toBeUndefined();
    expect(furthest(got.dlogprobs, want.dlogprobs, F32)).toBeUndefined();
    expect(furthest([got.metrics.share_up!], [want.metrics.share_up!], F32)).toBeUndefined();
  });

  test.runIf(device.info.kind === "webgpu")("is quoted with its own line number when it does not compile", async () => {
    const error = await deviceLoss(device, batch, { ...spec, name: "broken", settings: {} }).catch((e) => e);
    expect(error).toBeInstanceOf(ShaderError);
    expect(error.line).toBe(4);
    expect(error.message).toContain("let slope = t.advantage * undefined_name;");
  });

  test("written for the host runs there, and recordPolicyLoss() refuses it", async () => {
    const own = { name: "host_only", loss_agg_mode: "token-mean" };
    const gpg = policyLoss(batch, { name: "gpg", loss_agg_mode: "token-mean" });
    expect((await computePolicyLoss(batch, own, { device })).loss).toBeCloseTo(gpg.loss, 12);
    await expect(deviceLoss(device, batch, own)).rejects.toThrow(/function of the host/);
  });
});

test("a loss needs a form, and its WGSL the function token_loss", async () => {
  await expect(defineLoss({ name: "nothing", settings: {} })).rejects.toThrow(/token, wgsl/);
  await expect(defineLoss({ name: "wrong", settings: {}, wgsl: "fn other() {}" })).rejects.toThrow(/token_loss/);
  await expect(defineLoss({ name: "vanilla", settings: {}, wgsl: SMOOTH })).rejects.toThrow(/taken/);
});

describe("a user's estimator", () => {
  defineEstimator({
    name: "median",
    settings: { scale: 1 },
    estimate: (groups, { scale }) =>
      groups.map(({ rewards }) => {
        const sorted = rewards.toSorted((a, b) => a - b);
        return rewards.map((r) => scale * (r - sorted[sorted.length >> 1]!));
      }),
  });
  defineEstimator({ name: "short", settings: {}, estimate: (groups) => groups.map(() => [0]) });
  const three = {
    offsets: Uint32Array.of(0, 1, 2, 3),
    mask: Uint32Array.of(1, 1, 1),
    groups: packGroups(Uint32Array.of(0, 0, 0), 1),
    scores: [5, 1, 2],
  };
  test("gets groups and its settings", () => {
    expect(Array.from(advantages(three, "median", { scale: 2 }).values)).toEqual([6, -2, 0]);
  });
  test("must give one advantage per row", () => {
    expect(() => advantages(three, "short")).toThrow(/short: group 0 needs 3 advantages, and there are 1/);
  });
});
