/** Steps of preference training on a backend that notes what it is given: the gradient of the loss, and what is refused. */
import { describe, expect, test } from "vitest";
import { type DpoOptions, dpo, totalDpoSteps } from "../../../../src/train/loop/dpo/dpo.ts";
import type { EncodedPreference } from "../../../../src/train/loop/dpo/encode.ts";
import { MemoryLogger } from "../../../fixtures/loop.ts";
import { TableBackend } from "../../../fixtures/table_backend.ts";

const AT = { file: "made.jsonl", line: 1 };
const row = (prompt: readonly number[], answer: readonly number[]) => ({
  ids: [...prompt, ...answer],
  mask: [...prompt.map(() => 0), ...answer.map(() => 1)],
  ...AT,
});
const pair = (i: number): EncodedPreference => ({ rows: [row([1], [2 + (i % 3)]), row([1], [1, 2, 3])], ...AT });
const labelled = (i: number): EncodedPreference => ({ rows: [row([1 + (i % 2)], [2, 3])], label: i % 2 === 0, ...AT });
const many = <T>(count: number, make: (i: number) => T) => Array.from({ length: count }, (_, i) => make(i));

class Noting extends TableBackend {
  references = 0;
  freezeReference() {
    this.references++;
  }
}

const SETTINGS = { data: { train_batch_size: 2, seed: 1 }, trainer: { total_batches: 1, test_freq: -1 } };

async function run(options: Partial<DpoOptions>) {
  const [backend, log] = [new Noting("abcd"), new MemoryLogger()];
  await dpo({ backend, rows: { train: many(4, pair) }, settings: SETTINGS, loggers: [log], ...options });
  return { backend, metrics: log.of("train")[0]!.metrics };
}

test("a step's weights are minus the slopes of the loss: chosen tokens up, rejected ones down", async () => {
  const { backend, metrics } = await run({ loss: { loss_type: "sigmoid", settings: { beta: 0.5 } } });
  const [[batch], [loss]] = [backend.batches, backend.losses];
  // The policy is its own reference: the slope of -log sigmoid(0) is beta / 2 in each token, over two pairs.
  const slope = 0.5 / 2 / 2;
  const weights = Array.from(batch!.weights!);
  const { offsets, mask } = batch!;
  for (let r = 0; r + 1 < offsets.length; r++)
    for (let t = offsets[r]!; t < offsets[r + 1]!; t++)
      expect(weights[t]).toBeCloseTo(mask[t] === 0 ? 0 : r % 2 === 0 ? slope : -slope, 6);
  expect(loss).toMatchObject({ name: "cross_entropy", loss_agg_mode: "token-sum", temperature: 1, entropy_coeff: 0 });
  expect(metrics["train/loss"]).toBeCloseTo(Math.LN2, 6);
});

test("both rows of a pair count as its tokens", async () => {
  const { metrics } = await run({});
  expect(metrics["train/global_tokens"]).toBe(2 * (2 + 4));
  // 12 tokens hold two pairs of 6.
  const rows = { train: many(4, pair) };
  expect(totalDpoSteps({ rows, batchTokens: 12, settings: { trainer: { total_epochs: 1 } } })).toBe(2);
});

test.each([
  ["sigmoid", 1],
  ["ipo", 1],
  ["simpo", 0],
  ["orpo", 0],
])("%s keeps %i references", async (loss_type, references) => {
  const { backend } = await run({ loss: { loss_type } });
  expect(backend.references).toBe(references);
});

describe("refuses", () => {
  const kto = { loss_type: "kto" };
  const labels = { train: many(4, labelled) };
  const of = (batch: number) => ({ ...SETTINGS, data: { ...SETTINGS.data, train_batch_size: batch } });

  test.each<[string, Partial<DpoOptions>, RegExp]>([
    ["a baseline of one row", { loss: kto, rows: labels, settings: of(1) }, /a step takes 1 row\./],
    [
      "a budget that may take one row",
      { loss: kto, rows: labels, batchTokens: 9 },
      /a step of 9 tokens may take one row/,
    ],
    ["one row that is held out", { loss: kto, rows: { ...labels, val: many(1, labelled) } }, /one row is held out/],
    ["pairs for kto", { loss: kto }, /takes labelled rows .* \(made\.jsonl:1\)/],
    ["labelled rows for pairs", { rows: labels }, /takes pairs .* \(made\.jsonl:1\)/],
    ["pairs with a label", { rows: { train: many(4, (i) => ({ ...pair(i), label: true })) } }, /takes pairs/],
    [
      "labelled pairs for kto",
      { loss: kto, rows: { train: many(4, (i) => ({ ...pair(i), label: true })) } },
      /takes labelled/,
    ],
    ["held-out rows of another form", { rows: { train: many(4, pair), val: labels.train } }, /takes pairs/],
  ])("%s", async (_, options, message) => {
    await expect(run(options)).rejects.toThrow(message);
  });

  test.each<[string, Partial<DpoOptions>]>([
    ["two rows a step", { loss: kto, rows: labels, settings: of(2) }],
    ["no and two rows that are held out", { loss: kto, rows: { ...labels, val: many(2, labelled) } }],
    ["one pair a step, and one held out", { settings: of(1), rows: { train: many(4, pair), val: many(1, pair) } }],
  ])("not %s", async (_, options) => {
    await expect(run(options)).resolves.toBeDefined();
  });
});
