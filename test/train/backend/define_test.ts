import { expect, test } from "vitest";
import type { Backend, Metrics, OptimParams } from "../../../src/engine/contract/backend.ts";
import { registerBackend } from "../../../src/train/backend/backends.ts";
import { defineBackend } from "../../../src/train/backend/define.ts";
import type { Task } from "../../../src/train/data/types.ts";
import { train } from "../../../src/train/loop/train.ts";
import type { Policy } from "../../../src/train/task/rollout.ts";
import { LETTER_SETTINGS, LETTERS, letterRun } from "../../fixtures/loop.ts";
import { TableBackend } from "../../fixtures/table_backend.ts";

/** The table's three functions and its tokenizer: the minimum for training on text. */
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

test("three functions train exactly as the complete backend does", async () => {
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

test("fused optimiser steps count too", async () => {
  const { table, backend: plain } = threeFunctions();
  const definition = {
    tokenizer: table.tokenizer,
    sample: plain.sample,
    forwardBackward: plain.forwardBackward,
    optimStep: plain.optimStep,
    forwardBackwardAndOptimStep: async (
      calls: Parameters<NonNullable<Backend["forwardBackwardAndOptimStep"]>>[0],
      params: OptimParams,
    ) => {
      const measured: Metrics[] = [];
      for (const { batch, loss } of calls) measured.push(await table.forwardBackward(batch, loss));
      return [...measured, await table.optimStep(params)];
    },
  };
  const backend = defineBackend(definition);
  expect((await train(letterRun({ settings: SHORT, backend }).run)).state.weightVersion).toBe(4);
  expect(table.weightVersion).toBe(4);
});

test("without a tokenizer, rollouts on token ids train and text is refused", async () => {
  const { table, backend: tokens } = threeFunctions();
  const bare = { ...tokens, tokenizer: undefined };
  const [ids, text] = [
    letterRun({ settings: SHORT, backend: bare, rollout: (task, policy) => answerIds(task, policy) }),
    letterRun({ settings: SHORT, backend: bare }),
  ];
  await train(ids.run);
  const trained = threeFunctions();
  await train(
    letterRun({
      settings: SHORT,
      backend: trained.backend,
      rollout: (task, policy) => answerIds(task, policy),
    }).run,
  );
  expect(table.text()).toBe(trained.table.text());
  expect(table.text()).not.toBe(threeFunctions().table.text());
  const [step] = ids.log.of("train")[0]!.episodes?.[0]?.trajectories[0]?.steps ?? [];
  expect(step).toMatchObject({ model_response: "", response_ids: expect.any(Array) });
  await expect(train(text.run)).rejects.toThrow(
    /the backend custom has no tokenizer. Call policy.complete with token ids/,
  );
});

/** 1 if the first token of the answer is that of the question. */
async function answerIds(task: Task, policy: Policy): Promise<number> {
  const id = LETTERS.indexOf(task.instruction);
  const { response_ids } = await policy.complete([id]);
  return Number(response_ids[0] === id);
}

test("the model is described by the tokenizer, and by what is given", () => {
  const { table, backend } = threeFunctions();
  const { sample, forwardBackward, optimStep } = backend;
  expect(defineBackend({ sample, forwardBackward, optimStep }).model).toEqual({
    name: "custom",
    vocabSize: 0,
    contextLength: Number.POSITIVE_INFINITY,
    eosTokenIds: [],
    parameters: 0,
    trainableParameters: 0,
  });
  expect(backend.model).toMatchObject({
    vocabSize: table.tokenizer.vocabSize,
    eosTokenIds: table.tokenizer.eosTokenIds,
  });
  const named = { name: "mine", model: { contextLength: 8, parameters: 3 }, tokenizer: table.tokenizer };
  const { model, close } = defineBackend({ sample, forwardBackward, optimStep, ...named });
  expect(model).toMatchObject({ name: "mine", vocabSize: 5, contextLength: 8, parameters: 3 });
  expect(close?.()).toBeUndefined();
});

test("a missing part fails when it is needed, not before", async () => {
  const of = (algorithm: object) =>
    train(letterRun({ settings: { ...SHORT, algorithm }, backend: threeFunctions().backend }).run);
  await expect(of({ kl_beta: 0.1 })).rejects.toThrow(/the backend custom has no logprobs\. Set .*kl_beta=0/);
  await expect(threeFunctions().backend.load("/nowhere")).rejects.toThrow(/no load\. .*resume_mode=disable/);
  await expect(threeFunctions().backend.save("/nowhere")).resolves.toBeUndefined();
});

test("a missing function and a taken name fail at once", () => {
  const { backend } = threeFunctions();
  expect(() => defineBackend({ ...backend, name: "half", optimStep: undefined as never })).toThrow(
    /backend half: it has no function optimStep/,
  );
  expect(() => registerBackend("tinker", () => backend)).toThrow(/backend tinker: the name is taken/);
});
