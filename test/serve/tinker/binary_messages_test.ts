/** The server's reading and writing of the binary messages, byte for byte as the official SDK encodes them. */
import { describe, expect, test } from "vitest";
import { bytesOf, fields, ProtobufWriter } from "../../../src/leaves/protobuf.ts";
import { decodeForwardBackward } from "../../../src/serve/tinker/protocol/forward_backward.ts";
import { packLossRows } from "../../../src/serve/tinker/protocol/loss_rows.ts";
import { Refusal } from "../../../src/serve/tinker/protocol/outcome.ts";
import { encodeSamples, encodeTrainingOutput } from "../../../src/serve/tinker/protocol/results.ts";
import { uniform } from "../../fixtures/numbers.ts";
import { sdkMessage } from "../../fixtures/tinker_messages.ts";

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
  expect(packLossRows(data)).toEqual({
    tokens: Uint32Array.of(1, 2, 70000, 9),
    offsets: Uint32Array.of(0, 3, 4),
    targets: Uint32Array.of(2, 70000, 3, 8),
    inputs: {
      advantages: Float32Array.of(0, 1.5, -2, 0.25),
      logprobs: Float32Array.of(0, -0.5, -1.25, -3),
    },
  });
});

test("the runs of a datum's provenance are read in order; a datum without them has none", async () => {
  const { data, lossFn } = await decodeForwardBackward(sdkMessage("stable_reinforce"));
  expect(lossFn).toBe("stable_reinforce");
  expect(data.map(({ provenance }) => provenance)).toEqual([
    {
      modelInput: [
        { kind: "prompt", sequenceId: "f:0", offset: 0, length: 2 },
        { kind: "sampled", sequenceId: "f:0", offset: 0, length: 1 },
      ],
      targets: [
        { kind: "prompt", sequenceId: "f:0", offset: 1, length: 1 },
        { kind: "sampled", sequenceId: "f:0", offset: 300, length: 2 },
      ],
    },
    undefined,
  ]);
});

test("the memory of what is decoded counts every field, 256 bytes each, over all data of a request", async () => {
  const overhead = async (count: number) => {
    const datum = new ProtobufWriter()
      .message(1, new ProtobufWriter().message(1, new ProtobufWriter().bytes(1, bytesOf(Int32Array.of(1, 2)))))
      .message(
        2,
        new ProtobufWriter()
          .text(1, "weights")
          .message(2, new ProtobufWriter().bytes(1, bytesOf(Float32Array.of(1, 2))).varint(3, 1)),
      );
    const message = new ProtobufWriter().text(1, "m").varint(2, 1).text(4, "ppo");
    for (let i = 0; i < count; i++) message.message(3, datum);
    return (await decodeForwardBackward(message.finish())).overheadBytes / 256;
  };
  // A datum: itself, its chunk with text and tokens, its input with name, tensor, values and type.
  const ofOne = (await overhead(2)) - (await overhead(1));
  expect([await overhead(1), ofOne, await overhead(5)]).toEqual([3 + 9, 9, 3 + 5 * 9]);
});

test("further fields of a setting of the loss are passed over", async () => {
  const typed = new ProtobufWriter().double(1, 0.5).text(9, "later");
  const bytes = new ProtobufWriter()
    .text(1, "m")
    .text(4, "ppo")
    .message(
      3,
      new ProtobufWriter().message(
        1,
        new ProtobufWriter().message(1, new ProtobufWriter().bytes(1, bytesOf(Int32Array.of(1)))),
      ),
    )
    .message(7, new ProtobufWriter().text(1, "beta").message(2, typed))
    .finish();
  expect((await decodeForwardBackward(bytes)).config).toEqual({ beta: 0.5 });
});

test("a prompt in several chunks is one row", async () => {
  const { data, forwardOnly } = await decodeForwardBackward(sdkMessage("forward_only_two_chunks"));
  expect(forwardOnly).toBe(true);
  expect(data[0]!.chunks).toHaveLength(2);
  expect(packLossRows(data)).toMatchObject({
    tokens: Uint32Array.of(4, 5, 6),
    targets: Uint32Array.of(5, 6, 7),
    inputs: { weights: Float32Array.of(0, 1, -2.5) },
  });
});

test("text in loss_fn_config is read as text, which the loss accepts or refuses", async () => {
  const { config } = await decodeForwardBackward(sdkMessage("ppo_text_in_config"));
  expect(config.reduction).toBe("sum");
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

test("sparse targets and weights are read into the cells that they name", async () => {
  const { data } = await decodeForwardBackward(sdkMessage("sparse"));
  expect(packLossRows(data)).toEqual({
    tokens: Uint32Array.of(4, 5),
    offsets: Uint32Array.of(0, 2),
    targets: Uint32Array.of(7, 0, 8, 0, 9, 0),
    targetOffsets: Uint32Array.of(0, 6),
    inputs: { weights: Float32Array.of(0.5, 0, 0.25, 0, 1, 0) },
  });
});

test("encodeTrainingOutput() writes losses, and data of several targets per position", () => {
  const logprobs = Float32Array.of(-1, -2, -3, -4, -5, -6, -7);
  const written = encodeTrainingOutput({
    logprobs,
    losses: logprobs.map((value) => -value / 2),
    offsets: Uint32Array.of(0, 4, 7),
    widths: [2, 3],
    metrics: { "loss:sum": 3.5 },
  });
  expect(fieldsOf(written)).toEqual(fieldsOf(sdkMessage("training_output_matrix")));
});

const NO_TOP = { topkSampleLogprobs: 0 };

describe("encodeSamples() writes the SDK's bytes", () => {
  const sequences = [
    { tokens: [5, 70000], logprobs: [-0.5, -2], finish_reason: "stop", weight_version: 0 },
    { tokens: [7], logprobs: [0], finish_reason: "length", weight_version: 0 },
  ] as const;

  test("of sequences only", () => {
    const request = { ...NO_TOP, promptLogprobs: false, topkPromptLogprobs: 0, prompt: [1, 2] };
    expect(hex(encodeSamples(request, { sequences }))).toBe(hex(sdkMessage("samples")));
  });

  test("with the requested log-probs of the prompt", () => {
    const scores = {
      logprobs: Float32Array.of(Number.NaN, -0.75),
      top: { tokens: Uint32Array.of(0, 0, 5, 6), logprobs: Float32Array.of(0, 0, -0.25, -1.5) },
    };
    const request = { ...NO_TOP, promptLogprobs: true, topkPromptLogprobs: 2, prompt: [1, 2] };
    const written = encodeSamples(request, { sequences, scores });
    expect(hex(written)).toBe(hex(sdkMessage("samples_with_prompt")));
  });
});

test("encodeSamples() leaves the scores as they are, because several requests may share them", () => {
  const scores = {
    logprobs: Float32Array.of(Number.NaN, -1, -2),
    top: { tokens: Uint32Array.of(0, 5, 6), logprobs: Float32Array.of(Number.NaN, -1, -2) },
  };
  const before = structuredClone(scores);
  const request = { ...NO_TOP, prompt: [1, 2, 3], promptLogprobs: true, promptLogprobsLastN: 1, topkPromptLogprobs: 1 };
  const written = hex(encodeSamples(request, { sequences: [], scores }));
  expect(scores).toEqual(before);
  expect(hex(encodeSamples(request, { sequences: [], scores }))).toBe(written);
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

/** A message's fields without the order of a map's entries, which is free: each field's number and its own fields, or bytes. */
function fieldsOf(bytes: Uint8Array, depth = 0): unknown {
  const read = [...fields(bytes, { left: 1000 })].map(({ number, bytes: inner, varint }) => {
    const isMessage = inner.length > 0 && ((depth === 0 && number === 2) || (depth === 1 && number === 2));
    return [number, isMessage ? fieldsOf(inner, depth + 1) : hex(inner), Number(varint)];
  });
  return read.sort((a, b) => JSON.stringify(a).localeCompare(JSON.stringify(b)));
}
