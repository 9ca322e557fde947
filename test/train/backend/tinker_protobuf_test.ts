/** The client's protobuf messages equal those of the official SDK, byte for byte. */
import { describe, expect, test } from "vitest";
import { RemoteError } from "../../../src/leaves/errors.ts";
import { ProtobufWriter } from "../../../src/leaves/protobuf.ts";
import {
  decodeSamples,
  decodeTrainingOutput,
  encodeForwardBackward,
  type ForwardBackwardRequest,
} from "../../../src/train/backend/tinker/protobuf_messages.ts";
import { uniform } from "../../fixtures/numbers.ts";
import { sdkMessage } from "../../fixtures/tinker_messages.ts";

describe("a forward_backward request", () => {
  // The SDK's fixture has its maps in the order of their keys.
  const request: ForwardBackwardRequest = {
    modelId: "s-1:train:0",
    seqId: 300,
    lossFn: "ppo",
    config: { clip_high_threshold: 1.25 },
    forwardOnly: false,
    data: [
      {
        tokens: Int32Array.of(1, 2, 70000),
        inputs: {
          advantages: Float32Array.of(0, 1.5, -2),
          logprobs: Float32Array.of(0, -0.5, -1.25),
          target_tokens: BigInt64Array.of(2n, 70000n, 3n),
        },
      },
      {
        tokens: Int32Array.of(9),
        inputs: {
          advantages: Float32Array.of(0.25),
          logprobs: Float32Array.of(-3),
          target_tokens: BigInt64Array.of(8n),
        },
      },
    ],
  };

  test("has the SDK's bytes", () => {
    expect(hex(encodeForwardBackward(request))).toBe(hex(sdkMessage("ppo")));
  });

  test("may view a part of an array, and be forward only", () => {
    const { tokens, inputs } = request.data[0]!;
    const padded = new Int32Array(5);
    padded.set(tokens, 1);
    const data = [{ tokens: padded.subarray(1, 4), inputs }];
    const [a, b] = [data, [request.data[0]!]].map((of) =>
      encodeForwardBackward({ ...request, data: of, forwardOnly: true }),
    );
    expect(hex(a!)).toBe(hex(b!));
    // Field 6 is last: its key and 1.
    expect([...a!.subarray(-2)]).toEqual([6 << 3, 1]);
  });
});

test.each(["training_output", "training_output_bfloat16"])("decodeTrainingOutput() reads %s", (name) => {
  expect(decodeTrainingOutput(sdkMessage(name))).toEqual({
    logprobs: [Float32Array.of(-0.5, -1.25, -3), Float32Array.of(-0.25)],
    metrics: { "loss:sum": 12.5 },
  });
});

const SEQUENCES = [
  { tokens: [5, 70000], logprobs: [-0.5, -2], stopReason: "stop" },
  { tokens: [7], logprobs: [0], stopReason: "length" },
];

test.each([
  ["samples", undefined],
  ["samples_with_prompt", Float32Array.of(Number.NaN, -0.75)],
])("decodeSamples() reads %s", (name, promptLogprobs) => {
  expect(decodeSamples(sdkMessage(name))).toEqual({ sequences: SEQUENCES, promptLogprobs });
});

describe("a result of a newer service", () => {
  const sequence = (reason: number, more = new ProtobufWriter()) =>
    new ProtobufWriter()
      .varint(1, reason)
      .bytes(2, Uint8Array.of(5, 0, 0, 0))
      .bytes(3, new Uint8Array(4))
      .bytes(9, more.finish());

  test.each([
    [0, "stop"],
    [1, "length"],
    [2, "stop"],
  ])("with the stop reason %i written out is read as %s", (reason, stopReason) => {
    const bytes = new ProtobufWriter().message(1, sequence(reason)).finish();
    expect(decodeSamples(bytes).sequences).toEqual([{ tokens: [5], logprobs: [0], stopReason }]);
  });

  test("may hold fields that are not known here", () => {
    const samples = decodeSamples(
      new ProtobufWriter()
        .message(1, sequence(0))
        .bytes(7, Uint8Array.of(1, 2, 3))
        .finish(),
    );
    expect(samples).toEqual({ sequences: [expect.anything()], promptLogprobs: undefined });
    const output = new Uint8Array([
      ...sdkMessage("training_output"),
      ...new ProtobufWriter().bytes(7, Uint8Array.of(9)).finish(),
    ]);
    expect(decodeTrainingOutput(output)).toEqual(decodeTrainingOutput(sdkMessage("training_output")));
  });
});

describe("a damaged result ends in a RemoteError", () => {
  const readers = { training_output: decodeTrainingOutput, samples_with_prompt: decodeSamples };
  test.each(Object.entries(readers))("%s", (name, read) => {
    const good = sdkMessage(name);
    const next = uniform(3);
    const damaged = [
      ...Array.from(good, (_, length) => good.subarray(0, length)),
      ...Array.from({ length: 3000 }, () => {
        const changed = good.slice();
        for (let changes = 1 + next() * 3; changes >= 1; changes--)
          changed[Math.floor(next() * changed.length)] = Math.floor(next() * 256);
        return changed;
      }),
    ];
    let refused = 0;
    for (const bytes of damaged)
      try {
        read(bytes);
      } catch (error) {
        if (!(error instanceof RemoteError)) throw error;
        refused++;
      }
    expect(refused).toBeGreaterThan(300);
  });
});

function hex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString("hex");
}
