/** How much a pass computes, before and after memory ran out. */
import { expect, test } from "vitest";
import { PassSize } from "../../../../src/engine/model/train/pass_size.ts";
import { OutOfMemoryError } from "../../../../src/leaves/errors.ts";

const ERROR = new OutOfMemoryError("Cannot allocate.", { label: "logits", bytes: 3 * 2 ** 20 });
const WIDE = { passLength: 100_000 };

test.each([
  [WIDE, {}, 8192, false],
  [{ passLength: 1000 }, {}, 1000, false],
  [{ passLength: 1000 }, { maxTokensPerPass: 2000 }, 1000, false],
  [WIDE, { maxTokensPerPass: 9000, gradientCheckpointing: "auto" }, 9000, false],
  [WIDE, { gradientCheckpointing: true }, 8192, true],
  [WIDE, { gradientCheckpointing: false }, 8192, false],
] as const)("%o with %o starts with %i tokens, recomputing: %s", (model, options, tokens, recomputes) => {
  expect(new PassSize(model, options)).toMatchObject({ tokens, recomputes });
  expect(new PassSize(model, options).takeWarning()).toBeUndefined();
});

test("halves the tokens of several sequences, and says so once", () => {
  const size = new PassSize(WIDE, {});
  size.reduce(ERROR, { tokens: 701, sequences: 2, work: "score" });
  expect(size).toMatchObject({ tokens: 351, recomputes: false });
  expect(size.takeWarning()).toBe(
    "the device ran out of memory (logits, 3.0 MiB), and the pass was repeated. From now on passes hold at most 351 tokens; " +
      "to start like that, set training.max_tokens_per_pass=351",
  );
  expect(size.takeWarning()).toBeUndefined();
});

test("recomputes for one sequence that is trained on, and then has nothing left", () => {
  const size = new PassSize(WIDE, {});
  size.reduce(ERROR, { tokens: 700, sequences: 1, work: "train on" });
  expect(size).toMatchObject({ tokens: 8192, recomputes: true });
  expect(size.takeWarning()).toMatch(
    /hold at most 8192 tokens and keep only the input of each layer; .* training\.max_tokens_per_pass=8192 training\.gradient_checkpointing=true$/,
  );
  const again = () => size.reduce(ERROR, { tokens: 700, sequences: 1, work: "train on" });
  expect(again).toThrow(OutOfMemoryError);
  expect(again).toThrow(
    "Cannot train on a sequence of 700 tokens: a pass over it alone exceeds the device's memory, with gradient checkpointing (logits, 3.0 MiB).",
  );
  expect(size.takeWarning()).toBeUndefined();
  // Several sequences are halved even then.
  size.reduce(ERROR, { tokens: 100, sequences: 3, work: "train on" });
  expect(size.tokens).toBe(50);
});

test.each(["score", "sample after"] as const)(
  "to %s one sequence keeps nothing, so recomputing does not help",
  (work) => {
    const size = new PassSize(WIDE, {});
    expect(() => size.reduce(ERROR, { tokens: 9, sequences: 1, work })).toThrow(
      `Cannot ${work} a sequence of 9 tokens: a pass over it alone exceeds the device's memory (logits, 3.0 MiB).`,
    );
    expect(size.recomputes).toBe(false);
  },
);

test("of one batch is a copy, which is reduced in place of the size it comes from", () => {
  const size = new PassSize({ passLength: 9000 }, { gradientCheckpointing: true });
  const own = size.ofOneBatch();
  expect(own).toMatchObject({ tokens: 8192, recomputes: true });
  expect(own.ofOneBatch()).toBe(own);
  own.reduce(ERROR, { tokens: 700, sequences: 2, work: "train on" });
  expect([own.tokens, size.tokens, size.takeWarning()]).toEqual([350, 8192, undefined]);
  expect(own.takeWarning()).toBe(
    "the device ran out of memory (logits, 3.0 MiB), and the pass was repeated. The passes of this batch, which has more targets than tokens, hold at most 350 tokens and keep only the input of each layer",
  );
});
