/** The server's reading and writing of the binary messages, byte for byte as the official SDK encodes them. */
import { describe, expect, test } from "vitest";
import { decodeForwardBackward } from "../../src/serve/protocol/forward_backward.ts";
import { rowsOf } from "../../src/serve/protocol/loss_rows.ts";
import { Refusal } from "../../src/serve/protocol/outcome.ts";
import { encodeSamples, encodeTrainingOutput } from "../../src/serve/protocol/results.ts";
import { uniform } from "../fixtures/numbers.ts";
import { sdkMessage } from "../fixtures/tinker_messages.ts";

const CONFIG = { clip_high_threshold: 1.25 };

test.each([
  ["ppo", CONFIG],
  ["ppo_config_v2", CONFIG],
  ["ppo_config_v2_wins", CONFIG],
  ["ppo_unknown_fields", {}],
])("decodeForwardBackward() reads the SDK's %s", async (name, config) => {
  const { data, overheadBytes, ...rest } = await decodeForwardBackward(sdkMessage(name));
  expect(overheadBytes).toBeGreaterThan(0);
  expect(rest).toEqual({ modelId: "s-1:train:0", seqId: 300n, lossFn: "ppo", config, forwardOnly: false });
  expect(rowsOf(data)).toEqual({
    tokens: Uint32Array.of(1, 2, 70000, 9),
    offsets: Uint32Array.of(0, 3, 4),
    targets: Uint32Array.of(2, 70000, 3, 8),
    inputs: {
      advantages: Float32Array.of(0, 1.5, -2, 0.25),
      logprobs: Float32Array.of(0, -0.5, -1.25, -3),
    },
  });
});

test("a prompt in several chunks is one row", async () => {
  const { data, forwardOnly } = await decodeForwardBackward(sdkMessage("forward_only_two_chunks"));
  expect(forwardOnly).toBe(true);
  expect(data[0]!.chunks).toHaveLength(2);
  expect(rowsOf(data)).toMatchObject({
    tokens: Uint32Array.of(4, 5, 6),
    targets: Uint32Array.of(5, 6, 7),
    inputs: { weights: Float32Array.of(0, 1, -2.5) },
  });
});

test("text instead of a number in loss_fn_config is refused by its key", async () => {
  const read = decodeForwardBackward(sdkMessage("ppo_text_in_config"));
  await expect(read).rejects.toThrow(/reduction.*number \(sum\)/);
});

test("encodeTrainingOutput() writes the SDK's bytes", () => {
  const logprobs = Float32Array.of(-0.5, -1.25, -3, -0.25);
  const written = encodeTrainingOutput({
    logprobs,
    offsets: Uint32Array.of(0, 3, 4),
    metrics: { "loss:sum": 12.5 },
  });
  expect(hex(written)).toBe(hex(sdkMessage("training_output")));
});

describe("encodeSamples() writes the SDK's bytes", () => {
  const sequences = [
    { tokens: [5, 70000], logprobs: [-0.5, -2], finish_reason: "stop", weight_version: 0 },
    { tokens: [7], logprobs: [0], finish_reason: "length", weight_version: 0 },
  ] as const;

  test("of sequences only", () => {
    const request = { promptLogprobs: false, topkPromptLogprobs: 0, prompt: [1, 2] };
    expect(hex(encodeSamples(request, { sequences }))).toBe(hex(sdkMessage("samples")));
  });

  test("with the requested log-probs of the prompt", () => {
    const scores = {
      logprobs: Float32Array.of(Number.NaN, -0.75),
      top: { tokens: Uint32Array.of(0, 0, 5, 6), logprobs: Float32Array.of(0, 0, -0.25, -1.5) },
    };
    const request = { promptLogprobs: true, topkPromptLogprobs: 2, prompt: [1, 2] };
    const written = encodeSamples(request, { sequences, scores });
    expect(hex(written)).toBe(hex(sdkMessage("samples_with_prompt")));
  });
});

test("a damaged request is refused: truncated at every byte, and 4,000 mutations", async () => {
  const good = sdkMessage("ppo_config_v2");
  const next = uniform(5);
  const damaged = [
    ...Array.from(good, (_, length) => good.subarray(0, length)),
    ...Array.from({ length: 4000 }, () => mutated(good, next)),
  ];
  let refused = 0;
  for (const bytes of damaged)
    try {
      await decodeForwardBackward(bytes);
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      expect(error.status).toBe(422);
      refused++;
    }
  expect(refused).toBeGreaterThan(1000);
});

/** One to three bytes changed. */
function mutated(bytes: Uint8Array, next: () => number): Uint8Array {
  const changed = bytes.slice();
  for (let changes = 1 + next() * 3; changes >= 1; changes--)
    changed[Math.floor(next() * changed.length)] = Math.floor(next() * 256);
  return changed;
}

function hex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString("hex");
}
