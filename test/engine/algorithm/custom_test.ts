import { describe, expect, test } from "vitest";
import { defineEstimator } from "../../../src/engine/algorithm/advantage/custom.ts";
import { packGroups } from "../../../src/engine/algorithm/advantage/groups.ts";
import { advantages } from "../../../src/engine/algorithm/advantage/host.ts";
import { defineLoss } from "../../../src/engine/algorithm/loss/custom.ts";
import { policyLoss } from "../../../src/engine/algorithm/loss/host.ts";
import { isHostOnly } from "../../../src/engine/algorithm/loss/resolve.ts";
import { joinShader } from "../../../src/engine/algorithm/loss/settings_struct.ts";
import { computePolicyLoss } from "../../../src/engine/algorithm/run.ts";
import { ShaderError } from "../../../src/leaves/errors.ts";
import { overDevices } from "../../fixtures/devices.ts";
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

describe("a user's loss in its parts", () => {
  test("names no metrics, or its own, and takes its settings through its schema", async () => {
    const token = ({ advantage }: { advantage: number }, { scale }: { scale: number }) =>
      ({ value: -advantage * scale, slope: 0, metrics: [scale, 2, 3] }) as const;
    const schema = { parse: (given: unknown) => ({ scale: 5, ...(given as object) }) };
    await defineLoss({ name: "silent", settings: { scale: 2 }, token });
    await defineLoss({ name: "loud", settings: { scale: 2 }, metrics: ["scale", null, "three"], token });
    await defineLoss({ name: "checked", settings: { scale: 2 }, metrics: ["scale", null, null], token, schema });
    const of = (name: string, settings = {}) =>
      policyLoss({ ...batch, entropy: undefined }, { name, settings, loss_agg_mode: "token-mean" }).metrics;
    expect(of("silent")).toEqual({});
    expect(of("loud")).toEqual({ scale: expect.closeTo(2, 6) as number, three: expect.closeTo(3, 6) as number });
    expect(of("checked").scale).toBeCloseTo(5, 6);
    expect(of("checked", { scale: 7 }).scale).toBeCloseTo(7, 6);
    expect(() => of("loud", { other: 1 })).toThrow("Cannot set other of the loss loud: it has scale (other).");
  });

  test("in WGSL alone is refused on the host, and one in TypeScript alone is the host's", () => {
    const own = { name: "broken", loss_agg_mode: "token-mean" };
    expect(() => policyLoss(batch, own)).toThrow(/^Cannot take the loss broken on the host: it has only a WGSL form\./);
    expect([isHostOnly(own), isHostOnly({ ...own, name: "host_only" })]).toEqual([false, true]);
    expect(isHostOnly({ ...own, name: "vanilla" })).toBe(false);
  });

  test("comes before the frame, with a struct of its settings in whole vectors of four", () => {
    const text = "fn token_loss (t: Token) -> TokenLoss {}";
    const fields = ["k", "scale", "padding2", "padding3"].map((name) => `  ${name}: f32,\n`).join("");
    expect(joinShader(text, ["k", "scale"], "frame")).toBe(`${text}\n\nstruct Settings {\n${fields}}\n\nframe`);
    expect(joinShader("", [], "")).toContain(
      "  padding0: f32,\n  padding1: f32,\n  padding2: f32,\n  padding3: f32,\n}",
    );
    expect(joinShader("", ["a", "b", "c", "d"], "")).toContain("{\n  a: f32,\n  b: f32,\n  c: f32,\n  d: f32,\n}");
  });
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
  test("takes its settings through a schema, and has none without them", () => {
    const schema = { parse: () => ({ scale: 3 }) };
    defineEstimator({
      ...{ name: "scaled", settings: { scale: 1 }, schema },
      estimate: (groups, { scale }) => groups.map(({ rewards }) => rewards.map((r) => scale * r)),
    });
    expect(Array.from(advantages(three, "scaled").values)).toEqual([15, 3, 6]);
    defineEstimator({
      name: "plain",
      estimate: (groups) =>
        groups.map(({ rewards, rows, lengths, index }) => {
          expect({ rewards, rows, lengths, index }).toEqual({
            rewards: [5, 1, 2],
            rows: [0, 1, 2],
            lengths: [1, 1, 1],
            index: 0,
          });
          return rewards;
        }),
    });
    expect(Array.from(advantages(three, "plain").values)).toEqual([5, 1, 2]);
    expect(() => advantages(three, "plain", { scale: 1 })).toThrow(/it has no settings/);
  });

  test("must give finite advantages, of every group", () => {
    defineEstimator({ name: "endless", estimate: () => [[0, Infinity, 0]] });
    defineEstimator({ name: "absent", estimate: () => [] });
    expect(() => advantages(three, "endless")).toThrow(
      /must be finite \(Infinity for row 1 of group 0\)\. Correct its/,
    );
    expect(() => advantages(three, "absent")).toThrow(/group 0 needs 3 advantages, and there are none\./);
  });

  test("must give one advantage per row", () => {
    expect(() => advantages(three, "short")).toThrow(/short: group 0 needs 3 advantages, and there are 1/);
  });
});
