/** What the server's routes and pages answer, in full. */
import { describe, expect, test } from "vitest";
import { backward, draw, eventually, holdEngine, openServer, step, type TestServer } from "./tinker_client.ts";

async function sampler(server: TestServer, session_id: string, number = 0): Promise<string> {
  const body = { session_id, sampling_session_seq_id: number, base_model: "toy" };
  return (await server.post("create_sampling_session", body)).json.sampling_session_id;
}

describe("a session", () => {
  test("is described with its runs, samplers and metadata, and listed page by page", async () => {
    const server = await openServer();
    const created = await server.post("create_session", { tags: [], user_metadata: { a: 1 } });
    const id = created.json.session_id;
    expect(created.json).toEqual({ session_id: id, type: "create_session" });
    const other = await server.session();
    const run = await server.model(id);
    const own = await sampler(server, id);
    expect(own).toBe(`${id}:sample:0`);
    expect((await server.get(`sessions/${id}`)).json).toEqual({
      training_run_ids: [run],
      sampler_ids: [own],
      user_metadata: { a: 1 },
    });
    const listed = async (query = "") => (await server.get(`sessions${query}`)).json.sessions;
    expect(await listed()).toEqual([id, other]);
    expect(await listed("?offset=1")).toEqual([other]);
    expect(await listed("?limit=1")).toEqual([id]);
    expect((await server.post("session_heartbeat", { session_id: id })).json).toEqual({ type: "session_heartbeat" });
    expect((await server.post(`sessions/${id}/finish`, {})).status).toBe(204);
    expect(await listed()).toEqual([other]);
    expect((await server.post(`sessions/${id}/finish`, {})).status).toBe(204);
  });

  test("learns what the server is and can do", async () => {
    const server = await openServer();
    expect((await server.post("client/config", {})).json).toEqual({
      use_pyqwest_transport: false,
      parallel_fwdbwd_chunks: false,
      sample_max_concurrent_requests: 256,
      proto_compress_fwdbwd: false,
      create_model_via_load_weights: false,
    });
    expect((await server.post("client/dynamic_config", {})).json).toEqual({
      refresh_interval_sec: 300,
      sample_cancel_enabled: true,
    });
    expect((await server.post("telemetry", { events: [] })).json).toEqual({ status: "accepted" });
    const about = { max_context_length: 64, trainable: true, sampleable: true };
    expect((await server.get("get_server_capabilities")).json).toEqual({
      supported_models: [
        { model_name: "toy", ...about },
        { model_name: "/models/toy", ...about },
      ],
      loss_fn_config: ["logits_temperature"],
    });
    expect((await server.get("nowhere")).json).toEqual({ detail: "There is no route GET /api/v1/nowhere." });
  });
});

describe("a model", () => {
  test("is described by its adapter; without one all weights train", async () => {
    const server = await openServer();
    const session_id = await server.session();
    const make = async (model_seq_id: number, more: object) =>
      (await server.result("create_model", { session_id, model_seq_id, base_model: "/models/toy", ...more })).json
        .model_id;
    const all = { is_lora: false, lora_rank: null };
    const adapter = { is_lora: true, lora_rank: 4 };
    for (const [number, more, of] of [
      [0, {}, all],
      [1, { lora_config: { rank: 4 } }, adapter],
    ] as const) {
      const id = await make(number, more);
      expect(id).toBe(`${session_id}:train:${number}`);
      expect((await server.post("get_info", { model_id: id })).json).toEqual({
        type: "get_info",
        model_id: id,
        model_data: { arch: "toy", model_name: "/models/toy", tokenizer_id: "/models/toy" },
        model_name: "/models/toy",
        ...of,
      });
    }
    const records = [...server.service.runs.values()].map(({ record }) => record.config);
    expect(records).toEqual([
      { rank: 0, seed: 0, trainUnembed: true, trainMlp: true, trainAttn: true },
      { rank: 4, seed: 1, trainUnembed: true, trainMlp: true, trainAttn: true },
    ]);
    const chosen = { rank: 2, seed: 9, train_unembed: false, train_mlp: false, train_attn: false };
    await make(2, { lora_config: chosen });
    expect([...server.service.runs.values()].at(-1)!.record.config).toEqual({
      rank: 2,
      seed: 9,
      trainUnembed: false,
      trainMlp: false,
      trainAttn: false,
    });
  });

  test("is listed with its last checkpoints of each kind", async () => {
    const server = await openServer();
    const [a, b] = [await server.model(), await server.model()];
    await server.result("save_weights", {
      model_id: a,
      seq_id: 1,
      path: "one",
      user_metadata: { k: 1 },
      ttl_seconds: 600,
    });
    await new Promise((resolve) => setTimeout(resolve, 5));
    await server.result("save_weights", { model_id: a, seq_id: 2 });
    await server.result("save_weights_for_sampler", { model_id: a, seq_id: 3, path: "drawn" });
    const info = (await server.get(`training_runs/${a}`)).json;
    const checkpoint = (kind: string, name: string, more: object = {}) => ({
      checkpoint_id: `${kind}/${name}`,
      checkpoint_type: kind === "weights" ? "training" : "sampler",
      time: expect.stringMatching(/^20\d\d-.*Z$/),
      tinker_path: `tinker://${a}/${kind}/${name}`,
      size_bytes: expect.any(Number),
      public: false,
      expires_at: null,
      user_metadata: null,
      ...more,
    });
    expect(info).toEqual({
      training_run_id: a,
      base_model: "toy",
      model_owner: "local",
      is_lora: true,
      corrupted: false,
      lora_rank: 4,
      last_request_time: expect.stringMatching(/Z$/),
      last_checkpoint: checkpoint("weights", "seq-2"),
      last_sampler_checkpoint: checkpoint("sampler_weights", "drawn"),
      user_metadata: null,
    });
    expect(info.last_checkpoint.size_bytes).toBeGreaterThan(0);
    const { json } = await server.get(`training_runs/${a}/checkpoints`);
    expect(json.checkpoints.map((it: { checkpoint_id: string }) => it.checkpoint_id)).toEqual([
      "sampler_weights/drawn",
      "weights/seq-2",
      "weights/one",
    ]);
    expect(json.checkpoints[2]).toEqual(
      checkpoint("weights", "one", { user_metadata: { k: 1 }, expires_at: expect.stringMatching(/Z$/) }),
    );
    const page = (await server.get("checkpoints?offset=1&limit=1")).json;
    expect(page.cursor).toEqual({ offset: 1, limit: 1, total_count: 3 });
    expect(page.checkpoints.map((it: { checkpoint_id: string }) => it.checkpoint_id)).toEqual(["weights/seq-2"]);
    const runs = (await server.get("training_runs?limit=1")).json;
    expect(runs.cursor).toEqual({ offset: 0, limit: 1, total_count: 2 });
    expect(runs.training_runs.map((it: { training_run_id: string }) => it.training_run_id)).toEqual([b]);
    expect((await server.post("weights_info", { tinker_path: `tinker://${a}/weights/one` })).json).toEqual({
      base_model: "toy",
      is_lora: true,
      lora_rank: 4,
      train_unembed: true,
      train_mlp: true,
      train_attn: true,
    });
    expect((await server.get("training_runs/x:train:0")).status).toBe(404);
    expect((await server.get("training_runs/x:train:0/checkpoints")).status).toBe(404);
    expect((await server.get(`training_runs/${b}/checkpoints`)).json).toEqual({ checkpoints: [] });
  });

  test.each<[string, object, RegExp]>([
    ["save_weights_for_sampler", {}, /the request needs path \(a name\) or sampling_session_seq_id \(a snapshot\)/],
    ["load_weights", { path: "tinker://a:train:0/weights/b" }, /needs model_id, or session_id and model_seq_id/],
    ["load_weights", { path: "x", session_id: "s" }, /needs model_id, or session_id and model_seq_id/],
    [
      "create_sampling_session",
      { session_id: "S", sampling_session_seq_id: 1 },
      /the request needs model_path or base_model/,
    ],
    ["asample", { prompt: { chunks: [] }, sampling_params: {} }, /the request needs sampling_session_id/],
    [
      "asample",
      { prompt: 7, sampling_params: {} },
      /^Cannot read prompt of the request: it must be an object \(7\)\.$/,
    ],
    [
      "asample",
      { sampling_session_id: "T", prompt: { chunks: [{ type: "encoded_text", tokens: [1.5] }] }, sampling_params: {} },
      /prompt\.chunks\.tokens must be whole numbers/,
    ],
  ])("%s without its parts (%#) is refused", async (path, body, message) => {
    const server = await openServer();
    const session_id = await server.session();
    const model_id = await server.model(session_id);
    const sampling_session_id = await sampler(server, session_id);
    const own = {
      ...(path.startsWith("save") && { model_id, seq_id: 1 }),
      ...("sampling_session_seq_id" in body && { session_id }),
      ...("sampling_session_id" in body && { sampling_session_id }),
    };
    const { status, json } = await server.post(path, { ...body, ...own });
    expect([status, json.detail]).toEqual([422, expect.stringMatching(message)]);
  });
});

describe("a result", () => {
  test("that is not there yet is answered with why: how many wait, and who has the device", async () => {
    const server = await openServer({ holdMs: 1 });
    const session = await server.session();
    const id = await server.model(session);
    const own = await sampler(server, session);
    const open = holdEngine(server);
    await server.post("optim_step", step(id, 1));
    const waiting = (await server.post("asample", draw(own, 1))).json;
    expect(waiting).toEqual({
      request_id: expect.any(String),
      sample_sequence_ids: [`${waiting.request_id}:0`],
    });
    const early = await server.retrieve(waiting.request_id);
    expect([early.status, early.json]).toEqual([
      408,
      {
        type: "try_again",
        request_id: waiting.request_id,
        queue_state: "active",
        queue_state_reason: `1 requests wait while ${id} has the device`,
      },
    ]);
    const parked = (await server.post("optim_step", step(id, 5))).json;
    expect(parked.model_id).toBe(id);
    expect((await server.retrieve(parked.request_id)).json).toEqual({
      type: "try_again",
      request_id: parked.request_id,
      queue_state: "active",
      queue_state_reason: "waiting for seq_id 2",
    });
    open();
    await eventually(() => expect(server.engine.calls).toContain("sample 1"));
  });
});

describe("the pages", () => {
  const working = async () => {
    const server = await openServer({ limits: { policyBytes: 1000 } });
    const session = await server.session();
    const id = await server.model(session);
    await server.result("forward_backward", backward(id, { seq: 1, targets: [1, 2, 3, 4] }));
    await server.result("optim_step", step(id, 2));
    await server.result("save_weights", { model_id: id, seq_id: 3, path: "kept", ttl_seconds: 7200 });
    await server.result("optim_step", step(id, 4));
    const own = await sampler(server, session);
    await server.result("asample", draw(own, 1, { prompt_logprobs: true }));
    return { server, session, id, own };
  };

  test("of figures have every one, with its meaning and type", async () => {
    const { server } = await working();
    const text = new TextDecoder().decode((await server.get("/metrics")).bytes);
    const lines = text.split("\n");
    const figures = Object.fromEntries(
      lines.filter((line) => line && !line.startsWith("#")).map((line) => line.split(" ")),
    );
    expect(figures).toMatchObject({
      grpu_sessions: "1",
      grpu_models_loaded: "1",
      grpu_samplers: "1",
      grpu_training_requests_queued: "0",
      grpu_training_requests_parked: "0",
      grpu_sampling_requests_queued: "0",
      grpu_results_pending: "0",
      grpu_policy_bytes: "100",
      grpu_device_live_bytes: "1",
      grpu_device_peak_bytes: "2",
      grpu_device_budget_bytes: "3",
      grpu_sampled_tokens_total: "1",
      grpu_scored_tokens_total: "2",
      grpu_trained_tokens_total: "4",
      grpu_optim_steps_total: "2",
      grpu_sample_batches_total: "1",
      grpu_sample_sequences_total: "1",
      'grpu_http_answers_total{route="/api/v1/optim_step",status="200"}': "2",
    });
    expect(Number(figures.grpu_results_bytes)).toBe(server.service.futures.bytes);
    expect(Number(figures.grpu_device_busy_seconds_total)).toBeCloseTo(server.service.scheduler.busyMs / 1000, 6);
    for (const name of Object.keys(figures).map((key) => key.replace(/\{.*/, ""))) {
      expect(text).toMatch(new RegExp(`^# HELP ${name} .*\\.$`, "m"));
      expect(text).toContain(`# TYPE ${name} ${name.endsWith("_total") ? "counter" : "gauge"}\n`);
    }
    expect(text.endsWith("\n")).toBe(true);
  });

  test("count what waits over all runs and samplers", async () => {
    const { server, session, id, own } = await working();
    const other = await server.model(session, 1);
    await server.result("asample", draw(own, 2, { num_samples: 3 }));
    const open = holdEngine(server);
    await server.post("optim_step", step(id, 5));
    await eventually(() => expect(server.service.scheduler.current).toBeDefined());
    await server.post("asample", draw(own, 3));
    // Each run has two that wait, and one more whose number is ahead.
    for (const [run, next] of [
      [id, 6],
      [other, 1],
    ] as const)
      for (const seq of [next, next + 1, next + 5]) await server.post("optim_step", step(run, seq));
    const text = new TextDecoder().decode((await server.get("/metrics")).bytes);
    const figure = (name: string) => Number(new RegExp(`^grpu_${name} (\\d+)$`, "m").exec(text)![1]);
    expect(figure("training_requests_queued")).toBe(4);
    expect(figure("training_requests_parked")).toBe(2);
    expect(figure("sampling_requests_queued")).toBe(1);
    const page = new TextDecoder().decode((await server.get("/")).bytes);
    expect(page).toMatch(/<b>5<\/b><span>requests queued, \d+ without a result</);
    // One sequence in the first batch, three in the second.
    expect(page).toContain("<b>2.0</b><span>sequences a batch</span>");
    open();
  });

  test("for people show who trains and samples, what is saved, and the memory", async () => {
    const { server, id, own } = await working();
    const page = new TextDecoder().decode((await server.get("/")).bytes);
    const row = (...cells: string[]) => `<tr>${cells.map((cell) => `<td>${cell}</td>`).join("")}</tr>`;
    const idle = '<span class="soft">idle</span>';
    for (const part of [
      "<h1>toy</h1>",
      "toy, 1 parameters, context 64 tokens · toy: no device",
      "<b>1</b><span>session</span>",
      "<b>2</b><span>optimiser steps</span>",
      "tokens/s sampled, 1 in all",
      "tokens/s trained, 4 in all",
      "<b>0</b><span>requests queued, 0 without a result</span>",
      "<b>1.0</b><span>sequences a batch</span>",
      'width:33.3%"></u></i><span class="soft">1 B of 3 B, at most 2 B so far',
      'width:10.0%"></u></i><span class="soft">100 B of 1000 B',
      "% · idle",
      row(`<code>${id}</code>`, "LoRA, rank 4", '2 <span class="soft">(1 unsaved)</span>', idle, "0 s ago"),
      row(`<code>${own}</code>`, "base model", "1", idle),
    ])
      expect(page).toContain(part);
    expect(page).toMatch(
      /weights\/kept<\/code><\/td><td>training<\/td><td>1<\/td><td>\d+ B<\/td><td>\d s ago<\/td><td>in 2 h</,
    );
    expect(page).not.toContain("Not readable");
  });

  test("of a server without work say so", async () => {
    const page = new TextDecoder().decode((await (await openServer()).get("/")).bytes);
    for (const part of ["<b>0</b><span>sessions</span>", "<b>0.0</b><span>sequences a batch</span>", "None yet."])
      expect(page).toContain(part);
  });
});
