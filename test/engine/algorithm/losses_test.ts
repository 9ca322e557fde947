/** Every loss that is registered: its two languages agree on every device, and it is the loss that its name says. */
import { readdirSync } from "node:fs";
import { expect, test } from "vitest";
import { type LossDefinition, planLoss } from "../../../src/engine/algorithm/loss/definition.ts";
import { lossForm } from "../../../src/engine/algorithm/loss/form.ts";
import { policyLoss } from "../../../src/engine/algorithm/loss/host.ts";
import {
  builtInLosses,
  findLoss,
  lossesOfVerlAndTrinity,
  ownAggregation,
  registerLoss,
  verlLossNames,
} from "../../../src/engine/algorithm/loss/losses.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { builtInPlans, lossKernels, settingsFor } from "../../fixtures/loss_kernels.ts";
import { deviceLoss } from "./device_loss.ts";
import { F32, furthest } from "./golden.ts";
import { randomBatch } from "./random_batch.ts";

const batch = randomBatch(11, { rows: 9, longest: 20 });
const LEVEL = { importance_sampling_level: 1 };
const CASES = builtInLosses().flatMap(({ name, settings }) => [
  { name, settings: settingsFor(name) },
  ...("importance_sampling_level" in settings ? [{ name, settings: LEVEL }] : []),
]);

/** A loss that nothing else here computes. */
const odd = lossForm({
  name: "odd",
  params: ["shift"],
  token: (t, { shift }) => ({ value: t.d + shift, slope: 3, metrics: [0, 0, 0] }),
  wgsl: "fn token_loss(t: Token) -> TokenLoss { return TokenLoss(t.d + params.settings.shift, 3.0, vec3(0.0)); }",
});
const ODD: LossDefinition = {
  name: "losses-test-odd",
  settings: { shift: 0.5 },
  plan: (s) => ({ form: odd, params: { shift: s.shift! }, metrics: [null, null, null] }),
};
registerLoss(ODD);

overDevices("the host form and the device's", (device) => {
  test.each(CASES)("of $name $settings agree in value, gradient and metrics", async ({ name, settings }) => {
    const spec = { name, settings, loss_agg_mode: "seq-mean-token-mean", kl: { type: "k3+", coef: 0.1 } };
    const want = policyLoss(batch, spec);
    const got = await deviceLoss(device, batch, spec);
    expect(furthest([got.loss], [want.loss], F32)).toBeUndefined();
    expect(furthest(got.dlogprobs, want.dlogprobs, F32)).toBeUndefined();
    expect(Object.keys(got.metrics)).toEqual(Object.keys(want.metrics));
    expect(furthest(Object.values(got.metrics), Object.values(want.metrics), F32)).toBeUndefined();
    expect(got.dlogprobs.some((slope) => slope !== 0)).toBe(true);
  });

  test("of a loss that was added have its own gradient, not that of another", async () => {
    const spec = { name: ODD.name, loss_agg_mode: "token-sum" };
    const { dlogprobs, loss } = await deviceLoss(device, { ...batch, rolloutIsWeights: undefined }, spec);
    expect([...dlogprobs]).toEqual(Array.from(batch.mask, (trained) => 3 * trained));
    expect(loss).toBeCloseTo(policyLoss({ ...batch, rolloutIsWeights: undefined }, spec).loss, 3);
  });
});

test("a loss that two names share is one form, and two forms never share a name or a kernel", () => {
  const forms = [...new Set(builtInPlans().map(({ form }) => form))];
  expect(new Set(forms.map(({ name }) => name)).size).toBe(forms.length);
  const kernels = lossKernels();
  expect(new Set(kernels.map(({ name }) => name)).size).toBe(kernels.length);
});

test("each file of losses/ is registered, and every loss says what it is and where it comes from", async () => {
  const files = readdirSync("src/engine/algorithm/loss/losses");
  const exported = await Promise.all(
    files.map((file) => import(/* @vite-ignore */ `../../../src/engine/algorithm/loss/losses/${file}`)),
  );
  const isLoss = (value: unknown): value is LossDefinition =>
    typeof value === "object" && value !== null && "plan" in value && "settings" in value;
  const losses = exported.flatMap((module: object) => Object.values(module)).filter(isLoss);
  expect(losses.map(({ name }) => name).sort()).toEqual(
    builtInLosses()
      .map(({ name }) => name)
      .sort(),
  );
  for (const { name, describe, sources = [] } of losses) {
    expect(describe?.length, name).toBeGreaterThan(3);
    expect(sources.length, name).toBeGreaterThan(0);
  }
});

test("a loss names the mode of the aggregation that it brings, and its value is that mode's", () => {
  for (const { name, loss_agg_mode, aggregation } of builtInPlans().map((plan) => ({
    ...findLoss(plan.name),
    ...plan,
  })))
    expect(aggregation !== undefined, name).toBe(loss_agg_mode !== undefined);
  expect(ownAggregation("gspo")).toBe("seq-mean-token-mean");
  expect(ownAggregation("vanilla")).toBeUndefined();
  expect(ownAggregation("bypass_mode")).toBeUndefined();
  // geo_mean and luspo divide by rows what their tokens share already.
  for (const { name, aggregation } of builtInPlans().filter((plan) => !/^(geo_mean|trl\.luspo)$/.test(plan.name)))
    if (aggregation) expect(aggregation({ count: 3, longest: 5 }).mode, name).toBe(ownAggregation(name));
});

test("the names in other systems are those of the losses that have them", () => {
  const verl = ["vanilla", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "cispo", "dppo_tv", "dppo_kl"];
  expect(verlLossNames()).toEqual([...verl, "dro"]);
  expect(verlLossNames("0.8.0")).toEqual(verl);
  for (const version of ["0.9", "0.9.0", "0.9.1", "0.10.0", "1.0"]) expect(verlLossNames(version)).toContain("dro");
  expect(lossesOfVerlAndTrinity()).toEqual([
    ["vanilla", "ppo"],
    ["gspo", "gspo"],
    ["sapo", "sapo"],
    ["cispo", "cispo"],
  ]);
});

test("a taken name is refused, and a param without a value never reaches a kernel", () => {
  expect(() => registerLoss({ ...ODD, name: "vanilla" })).toThrow(/the name is taken/);
  expect(findLoss("vanilla").describe).toMatch(/^PPO/);
  for (const { name, form, params } of builtInPlans())
    expect(Object.keys(params).sort(), name).toEqual([...form.params].sort());
  for (const { name, rows, params } of builtInPlans())
    for (const param of rows?.params ?? []) expect(params, name).toHaveProperty(param);
  expect(planLoss(ODD, { shift: 2 }).params).toEqual({ shift: 2 });
});
