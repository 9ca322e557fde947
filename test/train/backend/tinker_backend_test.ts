/** The Tinker backend by the requests that it sends, against a service that answers from a table. */
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import type { LossSpec, SampleRequest, TrainBatch } from "../../../src/engine/contract/backend.ts";
import { byteTokenizer } from "../../../src/engine/model/files/tokenizer.ts";
import { TinkerBackend, type TinkerOptions } from "../../../src/train/backend/tinker/backend.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

type Body = Readonly<Record<string, unknown>>;
type Replies = Readonly<Record<string, (body: Body) => object | Response>>;

const LORA = { rank: 8, train_attn: true, train_mlp: false, train_unembed: true };
const ADAM = { learning_rate: 0.1, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0, grad_clip_norm: 1 };
const REQUEST: SampleRequest = {
  prompt_ids: [1, 2],
  params: { max_tokens: 4, temperature: 1, top_p: 1, top_k: -1, stop_token_ids: [] },
  seed: 5,
};
const ROWS = { tokens: Uint32Array.of(4, 5, 6), offsets: Uint32Array.of(0, 3) };

const BATCH: TrainBatch = {
  ...ROWS,
  mask: Uint32Array.of(0, 1, 1),
  advantages: { level: "row", values: Float32Array.of(1) },
  oldLogprobs: Float32Array.of(0, -1, -1),
};
const LOSS: LossSpec = { name: "ppo", loss_agg_mode: "token-sum", settings: {}, entropy_coeff: 0, temperature: 1 };

/** Opens the backend. A reply of a path under `retrieve_future/` is that of the request that it belongs to. */
async function open(replies: Replies = {}, options: Partial<TinkerOptions> = {}) {
  const sent: { readonly path: string; readonly body: Body }[] = [];
  const usual: Replies = {
    "client/config": () => ({}),
    create_session: () => ({ session_id: "s" }),
    get_server_capabilities: () => ({ supported_models: [{ model_name: "base", max_context_length: 65 }] }),
    get_info: () => ({ model_data: {} }),
    create_sampling_session: () => ({ sampling_session_id: "base-sampler" }),
    "retrieve_future/create_model": () => ({ model_id: "m" }),
    "retrieve_future/save_weights_for_sampler": () => ({ sampling_session_id: `sampler-${sent.length}` }),
    "retrieve_future/asample": () => ({
      sequences: [{ tokens: [7], logprobs: [-1], stop_reason: "stop" }],
      prompt_logprobs: [null, -2, -3],
    }),
    "retrieve_future/optim_step": () => ({ metrics: { grad_norm: 3, unclipped: 4 } }),
    "retrieve_future/load_weights": () => ({ path: "tinker://loaded" }),
    "retrieve_future/forward": () => ({ loss_fn_outputs: [{ logprobs: { data: [-1, -0.5] } }] }),
  };
  const all = { ...usual, ...replies };
  const fetch: TinkerOptions["fetch"] = async (url, { body: text }) => {
    const path = url.split("/api/v1/")[1]!;
    const body = JSON.parse(String(text ?? "null")) as Body;
    sent.push({ path, body });
    const key = path === "retrieve_future" ? `retrieve_future/${String(body.request_id)}` : path;
    const reply = all[key]?.(body) ?? { request_id: path };
    return reply instanceof Response ? reply : Response.json(reply);
  };
  const backend = await TinkerBackend.open({
    baseUrl: "http://service",
    apiKey: "k",
    sdkVersion: "1",
    wire: "json",
    baseModel: "base",
    lora: LORA,
    clock: { now: () => 0, sleep: async () => {} },
    fetch,
    ...options,
  });
  const paths = () => sent.map(({ path }) => path).filter((path) => path !== "retrieve_future");
  return { backend, sent, paths };
}

const bodyOf = (sent: readonly { path: string; body: Body }[], path: string) =>
  sent.find((it) => it.path === path)!.body;

describe("a model on the service", () => {
  test("is created with the adapter that is asked for, and described by what the service says", async () => {
    const { backend, sent } = await open();
    expect(bodyOf(sent, "create_model")).toEqual({
      session_id: "s",
      model_seq_id: 0,
      base_model: "base",
      lora_config: LORA,
      type: "create_model",
    });
    expect(backend.model).toEqual({
      name: "base",
      vocabSize: 0,
      // One token less than the service's: it samples one after a row.
      contextLength: 64,
      eosTokenIds: [],
      parameters: 0,
      trainableParameters: 0,
    });
    backend.close();
  });

  test.each<[string, object[], string | undefined, string]>([
    ["its name", [{ model_name: "base" }, { model_name: "/folder" }], "/folder", "base"],
    ["its folder where the service offers nothing else", [{ model_name: "/folder" }], "/folder", "/folder"],
    ["its name where the service offers neither", [{ model_name: null }], "/folder", "base"],
    ["its name where no folder is known", [{ model_name: "/folder" }], undefined, "base"],
  ])("is requested by %s", async (_, supported_models, baseModelFolder, name) => {
    const replies = { get_server_capabilities: () => ({ supported_models }) };
    const { backend, sent } = await open(replies, { ...(baseModelFolder && { baseModelFolder }) });
    expect(bodyOf(sent, "create_model").base_model).toBe(name);
    expect(backend.model.name).toBe(name);
    backend.close();
  });

  test.each<[string, object, object[], number | undefined, number]>([
    ["what the run wants, where it is less", {}, [{ model_name: "base", max_context_length: 65 }], 20, 20],
    ["the service's, where the run wants more", {}, [{ model_name: "base", max_context_length: 65 }], 90, 64],
    ["the run's alone, where the service says nothing", {}, [{ model_name: "base" }], 90, 90],
    ["that of the model's other name", { model_name: "B" }, [{ model_name: "B", max_context_length: 9 }], 90, 8],
    ["no other model's", {}, [{ model_name: "C", max_context_length: 9 }], 90, 90],
  ])("has a context of %s", async (_, model_data, supported_models, contextLength, longest) => {
    const replies = { get_server_capabilities: () => ({ supported_models }), get_info: () => ({ model_data }) };
    const { backend } = await open(replies, { contextLength });
    expect(backend.model.contextLength).toBe(longest);
    backend.close();
  });

  test.each<[string, object, object]>([
    ["as the service names them", { model_name: "B", tokenizer_id: "T" }, { name: "B", tokenizerId: "T" }],
    ["by its own name otherwise", { tokenizer_id: null }, { name: "base", tokenizerId: undefined }],
  ])("has the tokenizer that is found for it: %s", async (_, model_data, info) => {
    const tokenizer = byteTokenizer();
    const find = vi.fn(async () => tokenizer);
    const { backend } = await open({ get_info: () => ({ model_data }) }, { tokenizer: find });
    expect(find.mock.calls).toEqual([[info]]);
    expect(backend.tokenizer).toBe(tokenizer);
    expect(backend.model).toMatchObject({ vocabSize: tokenizer.vocabSize, eosTokenIds: tokenizer.eosTokenIds });
    backend.close();
  });

  test("that cannot be created leaves no session that beats", async () => {
    const away = { create_model: () => new Response("no", { status: 422 }) };
    await expect(open(away)).rejects.toThrow("422: no");
    expect(vi.getTimerCount()).toBe(0);
  });
});

describe("sampling", () => {
  test("takes one snapshot for all requests between two steps", async () => {
    const { backend, paths } = await open();
    const snapshots = () => paths().filter((path) => path === "save_weights_for_sampler").length;
    await Promise.all([backend.sample([REQUEST]), backend.sample([REQUEST, REQUEST])]);
    expect(snapshots()).toBe(1);
    await backend.optimStep(ADAM);
    const [drawn] = await backend.sample([REQUEST]);
    expect([snapshots(), drawn!.weight_version]).toEqual([2, 1]);
    backend.close();
  });

  test("by inflight weights reports the version that the sampler began with", async () => {
    const { backend, sent } = await open({}, { samplingClientKind: "inflight" });
    const saves = () => sent.filter(({ path }) => path === "save_weights_for_sampler").map(({ body }) => body.kind);
    await backend.publishWeights();
    const late = backend.sample([REQUEST], { weights: "published" });
    await backend.optimStep(ADAM);
    await backend.publishWeights();
    const next = backend.sample([REQUEST], { weights: "published" });
    expect([(await late)[0]!.weight_version, (await next)[0]!.weight_version]).toEqual([0, 1]);
    expect(saves()).toEqual(["inflight", "inflight"]);
    backend.close();
  });

  test("by inflight weights is refused on several servers", async () => {
    const options = { samplingClientKind: "inflight", samplingUrls: ["http://second"] } as const;
    await expect(open({}, options)).rejects.toThrow(/inflight weights on 2 servers: .* Name one server/);
  });

  test("takes another snapshot after one that failed", async () => {
    let fails = true;
    const { backend } = await open({
      save_weights_for_sampler: () => {
        if (!fails) return { request_id: "save_weights_for_sampler" };
        fails = false;
        return new Response("full", { status: 422 });
      },
    });
    await expect(backend.sample([REQUEST])).rejects.toThrow("422: full. No checkpoint has been saved.");
    expect(await backend.sample([REQUEST])).toHaveLength(1);
    backend.close();
  });

  test("by published weights keeps their sampler and their version through later steps", async () => {
    const { backend, sent } = await open();
    const sampler = () => sent.findLast(({ path }) => path === "asample")!.body.sampling_session_id;
    await backend.sample([REQUEST], { weights: "published" });
    const first = sampler();
    await backend.publishWeights();
    await backend.optimStep(ADAM);
    const [drawn] = await backend.sample([REQUEST], { weights: "published" });
    expect([sampler(), drawn!.weight_version]).toEqual([first, 0]);
    const [current] = await backend.sample([REQUEST]);
    expect(sampler()).not.toBe(first);
    expect(current!.weight_version).toBe(1);
    backend.close();
  });
});

describe("log-probs", () => {
  test("of the policy are those of a forward pass; of the reference those of the base model, opened once", async () => {
    const { backend, paths, sent } = await open();
    const of = async (policy: "current" | "reference") =>
      (await backend.logprobs(ROWS, { policy, temperature: 1 })).logprobs;
    expect([...(await of("current"))]).toEqual([0, -1, -0.5]);
    expect([...(await of("reference"))]).toEqual([0, -2, -3]);
    await of("reference");
    expect(paths().filter((path) => path === "create_sampling_session")).toHaveLength(1);
    expect(bodyOf(sent, "create_sampling_session").base_model).toBe("base");
    expect(bodyOf(sent, "asample").sampling_session_id).toBe("base-sampler");
    backend.close();
  });

  test("exist at temperature 1 alone, where the service announces no other", async () => {
    const { backend } = await open({}, {});
    await expect(backend.forwardBackward(BATCH, { ...LOSS, temperature: 0.7 })).rejects.toMatchObject({
      message: expect.stringContaining(
        "Cannot train at temperature 0.7: the service computes log-probs at temperature 1 (get_server_capabilities announces no logits_temperature). Set rllm.rollout.train.temperature=1.",
      ),
      part: "tinker",
      capability: "temperature",
    });
    await expect(backend.logprobs(ROWS, { policy: "current", temperature: 0.7 })).rejects.toMatchObject({
      message: expect.stringContaining("Cannot compute log-probs at temperature 0.7: the service has them at 1."),
      part: "tinker",
      capability: "temperature",
    });
    backend.close();
  });
});

describe("a service that announces logits_temperature", () => {
  const ANNOUNCED: Replies = {
    get_server_capabilities: () => ({
      supported_models: [{ model_name: "base" }],
      loss_fn_config: ["logits_temperature"],
    }),
    "retrieve_future/forward_backward": () => ({ loss_fn_outputs: [{ logprobs: { data: [-1, -0.5] } }] }),
  };
  const configs = (sent: readonly { path: string; body: Body }[]) =>
    sent.flatMap(({ path, body }) => {
      const input = (body?.forward_input ?? body?.forward_backward_input) as { loss_fn_config?: object } | undefined;
      return input ? [[path, input.loss_fn_config]] : [];
    });

  test("gets it with every pass at another temperature than 1", async () => {
    const { backend, sent } = await open(ANNOUNCED);
    await backend.logprobs(ROWS, { policy: "current", temperature: 0.7 });
    await backend.forwardBackward(BATCH, { ...LOSS, temperature: 0.7, settings: { clip_low_threshold: 0.5 } });
    await backend.forwardBackward(BATCH, { ...LOSS, name: "vanilla", temperature: 0.5 });
    await backend.forwardBackward(BATCH, LOSS);
    const of = (temperature: number) => ({ logits_temperature: temperature });
    expect(configs(sent)).toEqual([
      ["forward", of(0.7)],
      ["forward_backward", { clip_low_threshold: 0.5, ...of(0.7) }],
      ["forward", of(0.5)],
      ["forward_backward", of(0.5)],
      ["forward_backward", undefined],
    ]);
    backend.close();
  });

  test("has the reference at temperature 1 all the same", async () => {
    const { backend } = await open(ANNOUNCED);
    await expect(backend.logprobs(ROWS, { policy: "reference", temperature: 0.7 })).rejects.toThrow(
      "Cannot compute log-probs of the reference at temperature 0.7: the service has them at 1.",
    );
    backend.close();
  });
});

test("a step's metrics have the names of the local backend, and count", async () => {
  const { backend } = await open();
  expect(await backend.optimStep(ADAM)).toEqual({ "actor/grad_norm": 3, "optim/unclipped": 4, "actor/lr": 0.1 });
  expect(backend.weightVersion).toBe(1);
  backend.close();
});

describe("the weights to start from", () => {
  test.each<[string | undefined, string | undefined]>([
    [undefined, undefined],
    ["", undefined],
    ["tinker://run/weights/a", "tinker://run/weights/a"],
    ["run", "tinker://last"],
  ])("%o", async (startFrom, path) => {
    const replies = { "training_runs/run": () => ({ last_checkpoint: { tinker_path: "tinker://last" } }) };
    const { backend, sent } = await open(replies, { startFrom });
    await backend.sample([REQUEST]);
    await backend.sample([REQUEST]);
    const loads = sent.filter((it) => it.path === "load_weights").map(({ body }) => body.path);
    expect(loads).toEqual(path === undefined ? [] : [path]);
    backend.close();
  });

  test("are named by later failures", async () => {
    const replies = { optim_step: () => new Response("gone", { status: 404 }) };
    const { backend } = await open(replies, { startFrom: "tinker://run/weights/a" });
    await expect(backend.optimStep(ADAM)).rejects.toMatchObject({
      message:
        "Cannot call http://service/api/v1/optim_step: it answered 404: gone. The last checkpoint is tinker://run/weights/a: resume from it with training.resume_mode=auto.",
      status: 404,
      retryable: false,
    });
    backend.close();
  });
});
