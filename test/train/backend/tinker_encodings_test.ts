/** The JSON encoding of older servers: requests and results. */
import { describe, expect, test } from "vitest";
import { ENCODINGS } from "../../../src/train/backend/tinker/encodings.ts";

const { json } = ENCODINGS;
const reply = (body: unknown) => ({ status: 200, json: body, bytes: new Uint8Array() });
const request = {
  modelId: "m",
  seqId: 7,
  data: [
    {
      tokens: Int32Array.of(1, 2),
      inputs: { target_tokens: BigInt64Array.of(2n, 3n), weights: Float32Array.of(0, -0.5) },
    },
  ],
  lossFn: "cross_entropy",
  config: {},
  forwardOnly: false,
};
const input = {
  data: [
    {
      model_input: { chunks: [{ type: "encoded_text", tokens: [1, 2] }] },
      loss_fn_inputs: {
        target_tokens: { data: [2, 3], dtype: "int64", shape: [2] },
        weights: { data: [0, -0.5], dtype: "float32", shape: [2] },
      },
    },
  ],
  loss_fn: "cross_entropy",
};

describe("JSON", () => {
  test("sends forward_backward and forward to separate paths", () => {
    const { path, body } = json.forwardBackward(request);
    expect(path).toBe("/api/v1/forward_backward");
    // As it goes over the wire.
    expect(JSON.parse(JSON.stringify(body))).toEqual({
      model_id: "m",
      seq_id: 7,
      forward_backward_input: input,
      type: "forward_backward",
    });
    const config = { clip_low_threshold: 0.8 };
    const forward = json.forwardBackward({ ...request, lossFn: "ppo", config, forwardOnly: true });
    expect(forward).toMatchObject({
      path: "/api/v1/forward",
      body: { forward_input: { loss_fn: "ppo", loss_fn_config: config }, type: "forward" },
    });
  });

  test("is read if complete; otherwise the error names the missing field", () => {
    const output = {
      loss_fn_outputs: [{ logprobs: { data: [-1, -0.5], dtype: "float32" } }],
      metrics: { "loss:sum": 2 },
    };
    expect(json.trainingOutput(reply(output))).toEqual({
      logprobs: [Float32Array.of(-1, -0.5)],
      metrics: { "loss:sum": 2 },
    });
    expect(() => json.trainingOutput(reply({ loss_fn_outputs: [{}] }))).toThrow(/loss_fn_outputs\.0\.logprobs/);
    const samples = {
      sequences: [{ tokens: [4], logprobs: [-2], stop_reason: "length" }],
      prompt_logprobs: [null, -1],
    };
    expect(json.samples(reply(samples))).toEqual({
      sequences: [{ tokens: [4], logprobs: [-2], stopReason: "length" }],
      promptLogprobs: Float32Array.of(Number.NaN, -1),
    });
    expect(() => json.samples(reply({ sequences: [{ tokens: [4] }] }))).toThrow(/sequences\.0\.logprobs/);
  });
});
