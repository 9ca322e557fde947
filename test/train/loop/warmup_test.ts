import { expect, test } from "vitest";
import type { TrainBatch } from "../../../src/engine/contract/backend.ts";
import type { LoopState, Run } from "../../../src/train/loop/contract.ts";
import { warmupStep } from "../../../src/train/loop/warmup.ts";
import type { Example } from "../../../src/train/task/rollout.ts";
import { CHATML, chatTokenizer } from "../../fixtures/chat.ts";

const tokenizer = chatTokenizer(CHATML);

/** The batch of one warm-up step on one example, as text of each row's trained tokens. */
async function trainedOn(example: Example): Promise<{ batch: TrainBatch; trained: string }> {
  let batch: TrainBatch | undefined;
  const run = {
    backend: {
      name: "kept",
      tokenizer,
      // As Llama 3.2's generation_config.json, which names the end of a text before the end of a turn.
      model: { eosTokenIds: [0, ...tokenizer.eosTokenIds] },
      forwardBackward: async (given: TrainBatch) => {
        batch = given;
        return {};
      },
      optimStep: async () => ({}),
    },
    settings: {
      warmup: { steps: 1, learning_rate: 1, batch_size: 1, examples: null },
      training: { seed: 0, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 1 },
    },
    loggers: [],
    examples: [example],
  };
  await warmupStep(run as unknown as Run, { warmup: 0 } as LoopState);
  const kept = [...batch!.tokens].filter((_, i) => batch!.mask[i] === 1);
  return { batch: batch!, trained: tokenizer.decode(kept, { skipSpecialTokens: false }) };
}

test("a conversation trains on the assistant's turns alone", async () => {
  const messages = [
    { role: "user", content: "the" },
    { role: "assistant", content: "and" },
    { role: "user", content: "in" },
    { role: "assistant", content: "on" },
  ];
  const { batch, trained } = await trainedOn({ messages });
  expect(trained).toBe("and<|im_end|>on<|im_end|>");
  expect(batch.weights).toEqual(Float32Array.from(batch.mask));
  expect(tokenizer.decode([...batch.tokens], { skipSpecialTokens: false })).toBe(
    tokenizer.formatChat(messages, { addGenerationPrompt: false }),
  );
});

test("a prompt and its response train on the response and the end token", async () => {
  const { batch, trained } = await trainedOn({ prompt: [{ role: "user", content: "the" }], response: "12" });
  expect(trained).toBe("12<|im_end|>");
  expect(batch.tokens.length).toBe(batch.offsets[1]);
  // Nothing comes before the first token of a response without a prompt.
  expect((await trainedOn({ prompt: "", response: "12 on" })).batch.mask[0]).toBe(0);
});
