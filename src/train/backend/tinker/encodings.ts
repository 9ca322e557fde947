/** Encodings of training requests and of the results of training and sampling: protobuf, or the JSON of older servers. */
import { z } from "zod";
import type { TrainingDatum } from "./datums.ts";
import {
  decodeSamples,
  decodeTrainingOutput,
  encodeForwardBackward,
  type ForwardBackwardRequest,
  type SampleResponse,
} from "./protobuf_messages.ts";
import { checkReply, type HttpReply } from "./reply.ts";
import type { WireName } from "./results.ts";
import type { TrainingReply } from "./training_output.ts";

export interface RequestEncoding {
  forwardBackward(request: ForwardBackwardRequest): {
    readonly path: string;
    readonly body: object | Uint8Array;
  };
  /** @throws {RemoteError} for a result of another shape. */
  trainingOutput(reply: HttpReply): TrainingReply;
  /** @throws {RemoteError} for a result of another shape. */
  samples(reply: HttpReply): SampleResponse;
}

const FORWARD_BACKWARD = "/api/v1/forward_backward";

const protobuf: RequestEncoding = {
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

/** Encoding for SkyRL; the official SDK wrote it until 0.24. A forward pass has a separate path. */
const json: RequestEncoding = {
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
    const { loss_fn_outputs, metrics } = checkReply("forward_backward", { reply, shape: OUTPUT });
    const logprobs = loss_fn_outputs.map((output) => Float32Array.from(output.logprobs.data));
    return { logprobs, metrics: metrics ?? {} };
  },
  samples(reply) {
    const { sequences, prompt_logprobs } = checkReply("asample", { reply, shape: SAMPLES });
    return {
      sequences: sequences.map(({ stop_reason, ...rest }) => ({ ...rest, stopReason: stop_reason })),
      promptLogprobs: prompt_logprobs ? Float32Array.from(prompt_logprobs, (p) => p ?? Number.NaN) : undefined,
    };
  },
};

function datumJson({ tokens, inputs }: TrainingDatum) {
  const tensors = Object.entries(inputs).map(([name, values]) => {
    const dtype = values instanceof Float32Array ? "float32" : "int64";
    return [name, { data: Array.from(values as ArrayLike<number | bigint>, Number), dtype, shape: [values.length] }];
  });
  return {
    model_input: { chunks: [{ type: "encoded_text", tokens: [...tokens] }] },
    loss_fn_inputs: Object.fromEntries(tensors),
  };
}

export const ENCODINGS: Readonly<Record<WireName, RequestEncoding>> = { protobuf, json };
