/** Memory of the policies that one batch has open. */
import { expect, test } from "vitest";
import type { ServedBaseModel } from "../../../src/serve/tinker/base_models.ts";
import { type PoliciesOptions, SampledPolicies } from "../../../src/serve/tinker/sample/policies.ts";

const SAVED = { dir: "", record: { time: "now" } };
type Use = (dir: string, record: { time: string }) => unknown;

/** Policies of 100 bytes each, and how many of them are open. */
function setUp(budgetBytes: number) {
  const open = { count: 0 };
  const openPolicy = async () => {
    open.count++;
    return { bytes: 100, release: () => void open.count-- };
  };
  const model = { names: ["toy"], engine: { openPolicy } } as unknown as ServedBaseModel;
  const options = {
    ...{ budgetBytes, onBatch: () => {}, signal: new AbortController().signal, scheduler: {} },
    checkpoints: { findReadable: () => SAVED, read: async (_: unknown, use: Use) => use(SAVED.dir, SAVED.record) },
    models: { ofCheckpoint: () => model, use: (_: ServedBaseModel, work: () => Promise<unknown>) => work() },
  };
  const policies = new SampledPolicies(options as unknown as PoliciesOptions);
  const sourceOf = (name: string) => policies.saved(`tinker://a:train:0/sampler_weights/${name}`).source;
  return { open, policies, sourceOf };
}

test("a batch takes no further policy than the budget holds; the next batch does", async () => {
  const { open, policies, sourceOf } = setUp(250);
  const [a, b, c] = [sourceOf("a"), sourceOf("b"), sourceOf("c")];
  await a.open();
  await b.open();
  await expect(c.open()).rejects.toMatchObject({ path: "base_model" });
  expect([open.count, policies.bytes]).toEqual([2, 200]);
  a.close();
  b.close();
  await c.open();
  expect(policies.bytes).toBeLessThanOrEqual(250);
});

test("a policy larger than the budget runs alone", async () => {
  const { open, sourceOf } = setUp(50);
  await sourceOf("a").open();
  expect(open.count).toBe(1);
});
