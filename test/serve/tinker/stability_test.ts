/** The loss stable_reinforce of a server that serves it: what is recorded with samples, and what training makes of it. */
import { describe, expect, test } from "vitest";
import type { SampledSequence } from "../../../src/engine/contract/backend.ts";
import { RECORDED_TOP } from "../../../src/engine/contract/engine.ts";
import { bytesOf, ProtobufWriter } from "../../../src/leaves/protobuf.ts";
import {
  RecordedSequences,
  recordedOf,
  type SampledRequest,
} from "../../../src/serve/tinker/stability/recorded_sequences.ts";
import { sampledTargets } from "../../../src/serve/tinker/stability/sampled_targets.ts";
import { decodeSamples } from "../../../src/train/backend/tinker/protobuf_messages.ts";
import { draw, input, openServer, type TestServer } from "./tinker_client.ts";

type Run = readonly [kind: "prompt" | "sampled", id: string, offset: number, length: number];

interface GivenDatum {
  readonly tokens: readonly number[];
  readonly targets: readonly number[];
  readonly advantages?: readonly number[];
  readonly modelInput?: readonly Run[];
  readonly lossInputs?: readonly Run[];
}

function run([kind, id, offset, length]: Run): ProtobufWriter {
  const arm = new ProtobufWriter().text(1, id).varint(2, offset).varint(3, length);
  return new ProtobufWriter().message(kind === "prompt" ? 1 : 2, arm);
}

function datum({ tokens, targets, advantages, modelInput = [], lossInputs = [] }: GivenDatum): ProtobufWriter {
  const message = new ProtobufWriter()
    .message(1, new ProtobufWriter().message(1, new ProtobufWriter().bytes(1, bytesOf(Int32Array.from(tokens)))))
    .message(2, input("target_tokens", { data: BigInt64Array.from(targets, BigInt), dtype: 2 }))
    .message(2, input("advantages", { data: Float32Array.from(advantages ?? targets.map(() => 0)), dtype: 1 }));
  for (const span of modelInput) message.message(3, run(span));
  for (const span of lossInputs) message.message(4, run(span));
  return message;
}

function request(modelId: string, { seq, data }: { seq: number; data: readonly GivenDatum[] }): Uint8Array {
  const message = new ProtobufWriter().text(1, modelId).varint(2, seq).text(4, "stable_reinforce");
  for (const one of data) message.message(3, datum(one));
  return message.finish();
}

const SERVED = { stableReinforce: "score_centering" } as const;

/** A sampler and a model of one session. The toy samples its token 7 once after the prompt [1, 2]. */
async function open(server: TestServer) {
  const session_id = await server.session();
  const sampler = { session_id, sampling_session_seq_id: 0, base_model: "toy" };
  const { sampling_session_id } = (await server.post("create_sampling_session", sampler)).json;
  const model = await server.model(session_id);
  let [seq, drawn] = [0, 0];
  const sample = async (more: object = {}) => {
    const body = draw(sampling_session_id, drawn++, { record_stability_info: true, ...more });
    const { json } = await server.post("asample", body);
    const result = await server.retrieve(json.request_id);
    return { ids: json.sample_sequence_ids as string[], result };
  };
  const train = async (...data: GivenDatum[]) => {
    const { json } = await server.post("forward_backward", request(model, { seq: ++seq, data }));
    const { json: failed } = await server.retrieve(json.request_id);
    return failed as { error: string; category: string } | undefined;
  };
  return { session: session_id, sample, train };
}

/** The data that rl_loop makes of a sample: its targets of the prompt are zeros. */
const datumOf = (id: string, more: Partial<GivenDatum> = {}): GivenDatum => ({
  tokens: [1, 2],
  targets: [0, 7],
  advantages: [0, 1],
  modelInput: [["prompt", id, 0, 2]],
  lossInputs: [
    ["prompt", id, 1, 1],
    ["sampled", id, 0, 1],
  ],
  ...more,
});

describe("a server that serves stable_reinforce", () => {
  test("records the sampler's most likely tokens and hands them to the engine's loss", async () => {
    const server = await openServer(SERVED);
    const { sample, train } = await open(server);
    const { ids } = await sample({ num_samples: 2 });
    expect(await train(datumOf(ids[0]!), datumOf(ids[1]!, { advantages: [0, -1] }))).toBeUndefined();
    const top = Array.from({ length: RECORDED_TOP }, (_, i) => i + 1);
    expect(server.engine.rows?.sampled).toEqual({
      at: Uint32Array.of(1, 3),
      offsets: Uint32Array.of(0, 20, 40),
      tokens: Uint32Array.from([...top, ...top]),
      logprobs: Float32Array.from([...top, ...top], (i) => -i),
    });
    expect([...server.engine.rows!.inputs.advantages!]).toEqual([0, 1, 0, -1]);
  });

  test("answers a client with as many most likely tokens as it asks for", async () => {
    const { sample } = await open(await openServer(SERVED));
    const none = decodeSamples((await sample()).result.bytes).sequences[0]!;
    const three = decodeSamples((await sample({ topk_sample_logprobs: 3 })).result.bytes).sequences[0]!;
    const many = decodeSamples((await sample({ topk_sample_logprobs: 25 })).result.bytes).sequences[0]!;
    expect([none, three, many].map(({ tokens }) => [...tokens])).toEqual([[7], [7], [7]]);
    const topField = async (more: object) => (await sample(more)).result.bytes.length;
    const empty = await topField({});
    expect(await topField({ topk_sample_logprobs: 3 })).toBeGreaterThan(empty);
    expect(await topField({ topk_sample_logprobs: 25 })).toBeGreaterThan(await topField({ topk_sample_logprobs: 3 }));
    expect(empty).toBeLessThan(30);
  });

  test("records one token of a greedy sample, with all the mass", async () => {
    const server = await openServer(SERVED);
    const { sample, train } = await open(server);
    const { ids } = await sample({ sampling_params: { max_tokens: 4, temperature: 0 } });
    expect(await train(datumOf(ids[0]!))).toBeUndefined();
    expect(server.engine.rows?.sampled).toMatchObject({
      tokens: Uint32Array.of(7),
      logprobs: Float32Array.of(0),
    });
  });

  test.each([{ top_p: 0.9 }, { top_k: 5 }])(
    "refuses to record samples of %o, which it draws from other tokens",
    async (limit) => {
      const { sample } = await open(await openServer(SERVED));
      const { result } = await sample({ sampling_params: { max_tokens: 4, ...limit } });
      expect(result.json.error).toContain("record_stability_info needs top_p 1 and top_k -1");
    },
  );

  test("does not record what is sampled without record_stability_info", async () => {
    const server = await openServer(SERVED);
    const { sample, train } = await open(server);
    const { ids } = await sample({ record_stability_info: false });
    expect(await train(datumOf(ids[0]!))).toMatchObject({
      category: "user",
      error: expect.stringContaining(
        "no request of this server sampled it with record_stability_info, and no server that copies weights from here handed it on",
      ),
    });
    expect(server.service.stability.recorded.size).toBe(0);
  });

  test("trains a session on its own samples only, until the session ends", async () => {
    const server = await openServer(SERVED);
    const [own, other] = [await open(server), await open(server)];
    const { ids } = await own.sample();
    expect((await other.train(datumOf(ids[0]!)))?.error).toContain("another session sampled it");
    expect(await own.train(datumOf(ids[0]!))).toBeUndefined();
    await server.post(`sessions/${own.session}/finish`, {});
    expect((await other.train(datumOf(ids[0]!)))?.error).toContain("its session has ended");
    expect(server.service.stability.recorded.bytes).toBe(0);
  });

  test("takes the turns of an agent as one datum, each from its own sequence", async () => {
    const server = await openServer(SERVED);
    const { sample, train } = await open(server);
    const first = (await sample()).ids[0]!;
    const second = (await sample({ prompt: { chunks: [{ type: "encoded_text", tokens: [1, 2, 7, 5] }] } })).ids[0]!;
    const turns = {
      tokens: [1, 2, 7, 5],
      targets: [2, 7, 5, 7],
      advantages: [0, 1, 0, 1],
      modelInput: [
        ["prompt", first, 0, 2],
        ["sampled", first, 0, 1],
        ["prompt", second, 3, 1],
      ],
      lossInputs: [
        ["prompt", first, 1, 1],
        ["sampled", first, 0, 1],
        ["prompt", second, 3, 1],
        ["sampled", second, 0, 1],
      ],
    } as const;
    expect(await train(turns)).toBeUndefined();
    expect([...server.engine.rows!.sampled!.at]).toEqual([1, 3]);
  });

  test.each<[string, (id: string) => Partial<GivenDatum>, string]>([
    ["without provenance", () => ({ modelInput: [], lossInputs: [] }), "it does not say which tokens were sampled."],
    [
      "of an unknown sequence",
      () => ({ lossInputs: [["sampled", "x:0", 0, 2]] }),
      'the sequence "x:0" is not recorded for this session: no request',
    ],
    [
      "whose input is not covered",
      (id) => ({ modelInput: [["prompt", id, 0, 1]] }),
      "its model_input_spans must cover its 2 positions (1)",
    ],
    [
      "whose targets are covered twice",
      (id) => ({
        lossInputs: [
          ["prompt", id, 0, 2],
          ["sampled", id, 0, 1],
        ],
      }),
      "its loss_fn_input_spans must cover its 2 positions (3)",
    ],
    [
      "beyond the sampled tokens",
      (id) => ({ lossInputs: [["sampled", id, 0, 2]] }),
      "span 0 of loss_fn_input_spans must lie in the 1 sampled tokens of its sequence (2 from 0 on)",
    ],
    [
      "beyond the prompt",
      (id) => ({ modelInput: [["prompt", id, 1, 2]] }),
      "span 0 of model_input_spans must lie in the 2 prompt tokens of its sequence (2 from 1 on)",
    ],
    [
      "with a negative offset",
      (id) => ({ modelInput: [["prompt", id, -1, 2]] }),
      "span 0 of model_input_spans must lie in the 2 prompt tokens",
    ],
    [
      "with another prompt",
      () => ({ tokens: [1, 3] }),
      "position 1 of model_input must be token 2, as the sequence that its span names has it (3)",
    ],
    [
      "with another sampled token",
      () => ({ targets: [0, 8] }),
      "position 1 of target_tokens must be token 7, as the sequence that its span names has it (8)",
    ],
  ])("refuses a datum %s, by its number", async (_, more, message) => {
    const { sample, train } = await open(await openServer(SERVED));
    const id = (await sample()).ids[0]!;
    const failed = await train(datumOf(id), datumOf(id, more(id)));
    expect(failed).toMatchObject({ category: "user", error: expect.stringContaining("Cannot train on datum 1: ") });
    expect(failed!.error).toContain(message);
  });

  test("counts the memory that the recorded tokens of a training request take, of this loss alone", async () => {
    const { stability } = (await openServer(SERVED)).service;
    const data = [{ chunks: [], inputs: new Map([["target_tokens", { values: new BigInt64Array(3), shape: [3] }]]) }];
    expect(stability.bytesOf({ lossFn: "stable_reinforce", data })).toBe(3 * RECORDED_TOP * 20);
    expect(stability.bytesOf({ lossFn: "cross_entropy", data })).toBe(0);
    expect((await openServer()).service.stability.bytesOf({ lossFn: "stable_reinforce", data })).toBe(0);
  });

  test("asks for fewer tokens where all samples would record too many", async () => {
    const { sample } = await open(await openServer(SERVED));
    const { result } = await sample({ num_samples: 1024, sampling_params: { max_tokens: 62 } });
    expect(result.json.error).toContain("lower one of the three (record_stability_info needs 20 at each token)");
  });
});

test("a server without a method refuses the loss, and names the flag", async () => {
  const { train } = await open(await openServer());
  expect((await train(datumOf("a:0")))?.error).toContain("stable_reinforce");
});

describe("recorded sequences", () => {
  const HOUR = 3_600_000;
  const sequence = (tokens: number): SampledSequence => ({
    tokens: Array.from({ length: tokens }, (_, i) => i),
    logprobs: Array.from({ length: tokens }, () => -1),
    top_logprobs: Array.from({ length: tokens }, (_, i) => [{ token: i, logprob: -0.5 }]),
    finish_reason: "length",
    weight_version: 0,
  });
  const add = (recorded: RecordedSequences, id: string, session = "s", tokens = 10) =>
    recorded.keep(recordedOf({ sequenceIds: [id], prompt: [1], sequences: [sequence(tokens)], temperature: 1 }), {
      session,
    });

  test("are kept for a day, which each use restarts", () => {
    let now = 0;
    const recorded = new RecordedSequences({ budgetBytes: 2 ** 20, now: () => now });
    add(recorded, "used");
    add(recorded, "unused");
    now = 20 * HOUR;
    expect(recorded.use("used", "s").tokens).toHaveLength(10);
    now = 24 * HOUR;
    expect(() => recorded.use("unused", "s")).toThrow("more than a day ago");
    now = 43 * HOUR;
    recorded.use("used", "s");
    now = 67 * HOUR;
    recorded.dropExpired();
    expect([recorded.size, recorded.bytes]).toEqual([0, 0]);
    expect(() => recorded.use("used", "s")).toThrow("more than a day ago");
  });

  test("lose those used longest ago, of the session that has the most, where they take more than their room", () => {
    const bytesOfOne = 256 + 4 + 10 * 12;
    const recorded = new RecordedSequences({ budgetBytes: 4 * bytesOfOne });
    add(recorded, "other", "t");
    for (const id of ["a", "b", "c"]) add(recorded, id);
    expect(recorded.bytes).toBe(4 * bytesOfOne);
    recorded.use("a", "s");
    add(recorded, "d");
    expect(recorded.bytes).toBe(4 * bytesOfOne);
    expect(() => recorded.use("b", "s")).toThrow("newer sequences took its room (the server keeps 0 MiB of them)");
    for (const id of ["a", "c", "d"]) recorded.use(id, "s");
    recorded.use("other", "t");
  });

  test("of which none fits leave no room taken", () => {
    const recorded = new RecordedSequences({ budgetBytes: 300 });
    add(recorded, "large");
    expect([recorded.size, recorded.bytes]).toEqual([0, 0]);
    add(recorded, "empty", "s", 0);
    expect(recorded.use("empty", "s").k).toBe(0);
  });
});

test("a run from the middle of a sequence takes what was recorded there, and sequences may have recorded different numbers", () => {
  const recorded = new RecordedSequences({ budgetBytes: 2 ** 20 });
  const top = (token: number) => [
    { token, logprob: -token / 8 },
    { token: token + 50, logprob: -token / 4 },
  ];
  const sampled = { logprobs: [-1, -1, -1], finish_reason: "length", weight_version: 0 } as const;
  const long = { ...sampled, tokens: [3, 4, 5], top_logprobs: [top(3), top(4), top(5)] };
  const keep = (of: SampledRequest) => recorded.keep(recordedOf(of), { session: "s" });
  keep({ sequenceIds: ["long"], prompt: [1, 2], sequences: [long], temperature: 1 });
  const greedy = { ...sampled, tokens: [6, 7, 8] };
  keep({ sequenceIds: ["greedy"], prompt: [9], sequences: [greedy], temperature: 0 });
  const span = (kind: "prompt" | "sampled", sequenceId: string, [offset, length]: readonly [number, number]) => ({
    kind,
    sequenceId,
    offset,
    length,
  });
  // Of the first sequence two tokens from the second on, of the other one the last.
  const rows = {
    tokens: Uint32Array.of(2, 3, 4, 6, 7),
    offsets: Uint32Array.of(0, 3, 5),
    targets: Uint32Array.of(0, 4, 5, 0, 8),
    inputs: {},
  };
  const data = [
    {
      modelInput: [span("prompt", "long", [1, 1]), span("sampled", "long", [0, 2])],
      targets: [span("prompt", "long", [0, 1]), span("sampled", "long", [1, 2])],
    },
    {
      modelInput: [span("sampled", "greedy", [0, 2])],
      targets: [span("prompt", "greedy", [0, 1]), span("sampled", "greedy", [2, 1])],
    },
  ].map((provenance) => ({ chunks: [], inputs: new Map(), provenance }));
  expect(sampledTargets(data, rows, (id) => recorded.use(id, "s"))).toEqual({
    at: Uint32Array.of(1, 2, 4),
    offsets: Uint32Array.of(0, 2, 4, 5),
    tokens: Uint32Array.of(4, 54, 5, 55, 8),
    logprobs: Float32Array.of(-0.5, -1, -0.625, -1.25, 0),
  });
});
