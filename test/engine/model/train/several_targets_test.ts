/** Several targets after a position share its logits: the same bits, within one binding and the memory of one target. */
import { describe, expect, test } from "vitest";
import type { Device } from "../../../../src/engine/compute/device.ts";
import { LanguageModel, type LanguageModelOptions } from "../../../../src/engine/model/language_model.ts";
import { changed, narrowDevice, refusing } from "../../../fixtures/changed_device.ts";
import { devices, overDevices } from "../../../fixtures/devices.ts";
import { pack } from "../../../fixtures/golden_model.ts";
import { likelihood } from "../../../fixtures/likelihood.ts";
import { expectClose, uniform } from "../../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

const { vocabSize: V, hiddenSize: C } = SMALL_MODEL;
const next = uniform(4);
const token = () => Math.floor(next() * V);
/** Targets per position of each sequence. */
const WIDTHS = [40, 1, 7];
const ROWS = pack([5, 9, 11].map((length) => Array.from({ length }, token)));
const TARGETS = WIDTHS.flatMap((width, i) =>
  Array.from({ length: ROWS.offsets[i + 1]! - ROWS.offsets[i]! }, () => Array.from({ length: width }, token)),
);
const TOKENS = ROWS.tokens.length;
const WIDE = {
  ...ROWS,
  targets: Uint32Array.from(TARGETS.flat()),
  targetOffsets: Uint32Array.of(0, 200, 209, 286),
};

/** A row per target, of one column of the targets: 0 where a position has none. */
const column = (k: number) => ({ ...ROWS, targets: Uint32Array.from(TARGETS, (row) => row[k] ?? 0) });

const create = (device: Device, options: LanguageModelOptions = {}) =>
  LanguageModel.create(device, SMALL_MODEL, { ...options, seed: 3 });

async function figuresOf(device: Device, options: LanguageModelOptions = {}) {
  const model = create(device, options);
  const scores = await model.score(WIDE, { temperature: 0.7 });
  const passes = await model.accumulate(WIDE, { temperature: 0.7, loss: likelihood(device) });
  const gradients = await model.optimizer.gradients.read();
  model.release();
  return { scores, gradients, passes: passes.length };
}

function expectGradients(actual: Map<string, Float32Array>, expected: Map<string, Float32Array>): void {
  for (const [name, values] of expected)
    expectClose(actual.get(name)!, values, { relative: 0, absolute: 1e-6 * Math.hypot(...values) }, name);
}

overDevices("several targets per position", (device) => {
  test("have the log-probs of single ones, bit for bit, and the sum of their gradients", async () => {
    const { scores, gradients } = await figuresOf(device);
    const single = create(device);
    const columns: Float32Array[] = [];
    for (let k = 0; k < WIDTHS[0]!; k++) {
      columns.push((await single.score(column(k), { temperature: 0.7 })).logprobs);
      const slopes = Float32Array.from(TARGETS, (row) => (k < row.length ? -1 : 0));
      const dlogprobs = device.upload(slopes, "slopes");
      const loss = () => ({ dlogprobs, reads: [], release: () => {} });
      await single.accumulate(column(k), { temperature: 0.7, loss });
      device.release(dlogprobs);
    }
    expect([...scores.logprobs]).toEqual(TARGETS.flatMap((row, t) => row.map((_, k) => columns[k]![t]!)));
    expectGradients(gradients, await single.optimizer.gradients.read());
    single.release();
  });

  test("fit bindings that hold their tokens' rows, but not a row of channels for each, nor their logits", async () => {
    const limit = 64 * C * 4;
    expect(TOKENS).toBeLessThan(64);
    expect(WIDE.targets.length).toBeGreaterThan(64);
    const expected = await figuresOf(device);
    const actual = await figuresOf(narrowDevice(device, limit));
    expect(actual.scores).toEqual(expected.scores);
    expectGradients(actual.gradients, expected.gradients);
  });

  test("take one row of channels per position", async () => {
    const rows: number[] = [];
    const alloc: Device["alloc"] = (bytes, label) => {
      if (label === "hidden rows") rows.push(bytes / (C * 4));
      return device.alloc(bytes, label);
    };
    await figuresOf(changed(device, { alloc }));
    expect(rows).toEqual([TOKENS, TOKENS]);
  });
});

describe("a pass of several targets per position", () => {
  const [device] = devices;

  test("holds as many targets as one binding covers, and a sequence with more is refused before any work", async () => {
    const narrow = narrowDevice(device!, 2 ** 14);
    const dispatched: string[] = [];
    const dispatch: Device["dispatch"] = (kernel, options) => {
      dispatched.push(kernel.name);
      narrow.dispatch(kernel, options);
    };
    const model = create(changed(narrow, { dispatch }));
    const rowsOf = (...counts: number[]) => {
      const ends = counts.map((_, i) => counts.slice(0, i + 1).reduce((sum, count) => sum + count));
      const targets = Uint32Array.from({ length: ends.at(-1)! }, token);
      return { ...pack(counts.map(() => [1, 2])), targets, targetOffsets: Uint32Array.of(0, ...ends) };
    };
    const passesOf = async (...counts: number[]) =>
      (await model.accumulate(rowsOf(...counts), { temperature: 1, loss: likelihood(device!) })).length;
    expect([await passesOf(2048, 2048), await passesOf(2048, 2050)]).toEqual([1, 2]);
    dispatched.length = 0;
    await expect(passesOf(2, 4098)).rejects.toThrow(
      "Cannot run sequence 1: it has more targets than one binding of this device covers (4098 of at most 4096). Give fewer targets per position, or cut the sequence.",
    );
    expect(dispatched).toEqual([]);
    model.release();
  });

  test("that is refused memory leaves the passes of others as they are", async () => {
    const at = { alloc: -1 };
    const refused = refusing(device!, at);
    const model = create(refused.device);
    const warnings: string[] = [];
    model.onWarning((message) => warnings.push(message));
    const batch = { ...ROWS, mask: new Uint32Array(TOKENS).fill(1) };
    const run = async (rows: Parameters<typeof model.accumulate>[0]) =>
      (await model.accumulate(rows, { temperature: 1, loss: likelihood(device!) })).length;
    await run(WIDE);
    at.alloc = refused.seen.alloc + 5;
    expect(await run(WIDE)).toBeGreaterThan(1);
    expect(warnings).toEqual([
      expect.stringMatching(
        /and the pass was repeated\. The passes of this batch, which has more targets than tokens, hold at most 13 tokens$/,
      ),
    ]);
    expect([await run(batch), await run(WIDE)]).toEqual([1, 1]);
    // A batch of one target per token reduces them.
    at.alloc = refused.seen.alloc + 5;
    await run(batch);
    expect(await run(WIDE)).toBeGreaterThan(1);
    expect(warnings[1]).toContain("From now on passes hold at most 13 tokens");
    model.release();
  });

  test("of one sequence runs its layers again where memory is short, and those of others do not", async () => {
    const at = { alloc: -1 };
    const refused = refusing(device!, at);
    const model = create(refused.device);
    const warnings: string[] = [];
    model.onWarning((message) => warnings.push(message));
    const one = pack([[1, 2, 3]]);
    const wide = { ...one, targets: new Uint32Array(6), targetOffsets: Uint32Array.of(0, 6) };
    const short = (rows: Parameters<typeof model.accumulate>[0]) => {
      at.alloc = refused.seen.alloc + 5;
      return model.accumulate(rows, { temperature: 1, loss: likelihood(device!) });
    };
    await model.accumulate(wide, { temperature: 1, loss: likelihood(device!) });
    await short(wide);
    expect(warnings).toEqual([expect.stringMatching(/hold at most \d+ tokens and keep only the input of each layer$/)]);
    // Others keep the way out: had they run their layers again already, this would be an error.
    await short({ ...one, mask: Uint32Array.of(1, 1, 1) });
    expect(warnings[1]).toMatch(/From now on .* training\.gradient_checkpointing=true$/);
    model.release();
  });
});
