import { expect, test } from "vitest";
import { requestsOf, type SampleOrder } from "../../src/serve/sample/order.ts";
import { ToyEngine } from "../fixtures/toy_engine.ts";

const order: SampleOrder = {
  prompt: [1, 2],
  count: 6,
  stopTexts: [],
  temperature: 1,
  topK: -1,
  topP: 1,
  promptLogprobs: false,
  topkPromptLogprobs: 0,
};
const seeds = (of: Partial<SampleOrder>) =>
  requestsOf({ ...order, ...of }, new ToyEngine()).map(({ seed }) => seed);

test("each sample of a request has a seed of its own, the first the request's; the same again for the same seed", () => {
  expect(new Set(seeds({ seed: 7 })).size).toBe(6);
  expect(seeds({ seed: 7 })[0]).toBe(7);
  expect(seeds({ seed: 7 })).toEqual(seeds({ seed: 7 }));
  expect(seeds({ seed: 8 }).filter((it) => seeds({ seed: 7 }).includes(it))).toEqual([]);
});

test("without a seed no two requests draw alike", () => {
  expect(new Set([...seeds({}), ...seeds({})]).size).toBe(12);
});
