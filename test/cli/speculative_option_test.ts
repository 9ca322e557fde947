/** `--speculative-config` of the servers. */
import { expect, test } from "vitest";
import { speculativeOf } from "../../src/cli/commands/speculative_option.ts";

test("--speculative-config takes vLLM's names", () => {
  expect(speculativeOf(undefined)).toBeUndefined();
  expect(
    speculativeOf('{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}'),
  ).toEqual({ method: "ngram", numSpeculativeTokens: 3, promptLookupMax: 4, promptLookupMin: 2 });
  expect(speculativeOf('{"num_speculative_tokens": 1, "method": "ngram"}')).toMatchObject({ numSpeculativeTokens: 1 });
});

test.each([
  ["ngram", "it is no JSON"],
  ["[1]", "it must be an object ([1])"],
  ["null", "it must be an object (null)"],
  ["{}", 'method must be "ngram" (missing)'],
  ['{"method": "eagle", "num_speculative_tokens": 2}', 'method must be "ngram" ("eagle")'],
  ['{"method": "ngram"}', "num_speculative_tokens is missing"],
  ['{"method": "ngram", "num_speculative_tokens": "2"}', 'num_speculative_tokens must be a number ("2")'],
  ['{"method": "ngram", "num_speculative_tokens": 2, "model": "x"}', "it has no model. It takes method, num_spec"],
  ['{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens must be a whole number above 0 (0)"],
  [
    '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 1, "prompt_lookup_min": 2}',
    "prompt_lookup_min is above prompt_lookup_max (2 > 1)",
  ],
])("%s is refused", (text, message) => {
  expect(() => speculativeOf(text)).toThrow(message);
});
