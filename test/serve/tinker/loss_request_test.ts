/** A client's loss in the engine's terms: the temperature of its log-probs. */
import { expect, test } from "vitest";
import { lossRequestOf } from "../../../src/serve/tinker/protocol/loss_request.ts";

test("logits_temperature is the loss's temperature, and no setting of its own", () => {
  const own = { clip_low_threshold: 0.5 };
  expect(lossRequestOf("ppo", own)).toEqual({ name: "ppo", config: own });
  expect(lossRequestOf("ppo", { ...own, logits_temperature: 0.7 })).toEqual({
    name: "ppo",
    config: own,
    temperature: 0.7,
  });
});

test.each([0, -1, 1e-5, 1e5, Number.NaN, Number.POSITIVE_INFINITY, "0.7"])(
  "logits_temperature %o is refused",
  (value) => {
    expect(() => lossRequestOf("ppo", { logits_temperature: value })).toThrow(
      `Cannot take the loss ppo: logits_temperature must be a number in [0.0001, 10000] (${value}) (loss_fn_config).`,
    );
  },
);
