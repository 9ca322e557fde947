import { expect, test } from "vitest";
import { type PromptRequest, requestsOf } from "../../../src/serve/tinker/protocol/prompt_request.ts";
import { PROMPT_REQUEST, ToyEngine } from "../../fixtures/toy_engine.ts";

const seeds = (of: Partial<PromptRequest>) =>
  requestsOf({ ...PROMPT_REQUEST, count: 6, ...of }, new ToyEngine()).map(({ seed }) => seed);

test("samples of a request have distinct seeds, the first one the request's; the same seed gives the same seeds", () => {
  expect(new Set(seeds({ seed: 7 })).size).toBe(6);
  expect(seeds({ seed: 7 })[0]).toBe(7);
  expect(seeds({ seed: 7 })).toEqual(seeds({ seed: 7 }));
  expect(seeds({ seed: 8 }).filter((it) => seeds({ seed: 7 }).includes(it))).toEqual([]);
});

test("without a seed no two requests draw the same", () => {
  expect(new Set([...seeds({}), ...seeds({})]).size).toBe(12);
});
