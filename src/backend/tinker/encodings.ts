/** How a request to train and the results of training and sampling are written: protobuf, or the JSON of older servers. */
import { z } from "zod";
import {
  type Datum,
  decodeSamples,
  decodeTrainingOutput,
  encodeForwardBackward,
  type ForwardBackwardRequest,
  type Samples,
  type TrainingOutput,
} from "./protobuf_messages.ts";
import { check, type WireName } from "./session.ts";
import type { Reply } from "./transport.ts";

export interface Wire {
  forwardBackward(request: ForwardBackwardRequest): {
    readonly path: string;
    readonly body: object | Uint8Array;
  };
  /** @throws {RemoteError} for an answer that is none. */
  trainingOutput(reply: Reply): TrainingOutput;
  /** @throws {RemoteError} for an answer that is none. */
  samples(reply: Reply): Samples;
}

const FORWARD_BACKWARD = "/api/v1/forward_backward";

const protobuf: Wire = {
  forwardBackward: (request) => ({ path: FORWARD_BACKWARD, body: encodeForwardBackward(request) }),
  trainingOutput: ({ bytes }) => decodeTrainingOutput(bytes),
  samples: ({ bytes }) => decodeSamples(bytes),
};

const OUTPUT = z.object({
  loss_fn_outputs: z.array(z.object({ logprobs: z.object({ data: z.array(z.number()) }) })),
  metrics: z.record(z.string(), z.number()).nullish(),
});
const SAMPLES = z.object({
  sequences: z.array(
    z.object({
      tokens: z.array(z.number().int()),
      logprobs: z.array(z.number()),
      stop_reason: z.enum(["stop", "length"]),
    }),
  ),
  prompt_logprobs: z.array(z.number().nullable()).nullish(),
});

/** What SkyRL reads, and the official SDK wrote until 0.24: a forward pass alone has an address of its own. */
const json: Wire = {
  forwardBackward({ modelId, seqId, data, lossFn, config, forwardOnly }) {
    const hasConfig = Object.keys(config).length > 0;
    const input = {
      data: data.map(datumJson),
      loss_fn: lossFn,
      ...(hasConfig && { loss_fn_config: config }),
    };
    const head = { model_id: modelId, seq_id: seqId };
    return forwardOnly
      ? { path: "/api/v1/forward", body: { ...head, forward_input: input, type: "forward" } }
      : {
          path: FORWARD_BACKWARD,
          body: { ...head, forward_backward_input: input, type: "forward_backward" },
        };
  },
  trainingOutput(reply) {
    const { loss_fn_outputs, metrics } = check("forward_backward", { reply, shape: OUTPUT });
    const logprobs = loss_fn_outputs.map((output) => Float32Array.from(output.logprobs.data));
    return { logprobs, metrics: metrics ?? {} };
  },
  samples(reply) {
    const { sequences, prompt_logprobs } = check("asample", { reply, shape: SAMPLES });
    return {
      sequences: sequences.map(({ stop_reason, ...rest }) => ({ ...rest, stopReason: stop_reason })),
      promptLogprobs: prompt_logprobs
        ? Float32Array.from(prompt_logprobs, (p) => p ?? Number.NaN)
        : undefined,
    };
  },
};

function datumJson({ tokens, inputs }: Datum) {
  const tensors = Object.entries(inputs).map(([name, values]) => {
    const dtype = values instanceof Float32Array ? "float32" : "int64";
    return [
      name,
      { data: Array.from(values as ArrayLike<number | bigint>, Number), dtype, shape: [values.length] },
    ];
  });
  return {
    model_input: { chunks: [{ type: "encoded_text", tokens: [...tokens] }] },
    loss_fn_inputs: Object.fromEntries(tensors),
  };
}

export const WIRES: Readonly<Record<WireName, Wire>> = { protobuf, json };
