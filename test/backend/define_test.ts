import { expect, test } from "vitest";
import { defineBackend } from "../../src/backend/define.ts";
import { registerBackend } from "../../src/backend/registry.ts";
import { train } from "../../src/loop/train.ts";
import { LETTER_SETTINGS, LETTERS, letterRun } from "../fixtures/loop.ts";
import { TableBackend } from "../fixtures/table_backend.ts";

/** The table's three functions and its tokenizer: all that a backend must bring to train on text. */
function threeFunctions() {
  const table = new TableBackend(LETTERS);
  const backend = defineBackend({
    tokenizer: table.tokenizer,
    sample: (requests, options) => table.sample(requests, options),
    forwardBackward: (batch, loss) => table.forwardBackward(batch, loss),
    optimStep: (params) => table.optimStep(params),
  });
  return { table, backend };
}

const SHORT = { ...LETTER_SETTINGS, trainer: { total_batches: 4, test_freq: 2 } };

test("three functions train exactly as the whole backend does", async () => {
  const { table, backend } = threeFunctions();
  const whole = letterRun({ settings: SHORT });
  await train(whole.run);
  await train(letterRun({ settings: SHORT, backend }).run);
  expect(table.text()).toBe(whole.backend.text());
  expect(backend.weightVersion).toBe(4);
  expect(backend.model).toMatchObject({
    name: "custom",
    vocabSize: 5,
    contextLength: Number.POSITIVE_INFINITY,
  });
});

test("what is left out is refused when it is needed, not before", async () => {
  const of = (algorithm: object) =>
    train(letterRun({ settings: { ...SHORT, algorithm }, backend: threeFunctions().backend }).run);
  await expect(of({ kl_beta: 0.1 })).rejects.toThrow(/the backend custom has no logprobs: set .*kl_beta=0/);
  await expect(threeFunctions().backend.load("/nowhere")).rejects.toThrow(/no load: .*resume_mode=disable/);
  await expect(threeFunctions().backend.save("/nowhere")).resolves.toBeUndefined();
});

test("a missing function and a taken name are told at once", () => {
  const { backend } = threeFunctions();
  expect(() => defineBackend({ ...backend, name: "half", optimStep: undefined as never })).toThrow(
    /backend half .* must have the function optimStep/,
  );
  expect(() => registerBackend("tinker", () => backend)).toThrow(/grpu has one of that name/);
});
