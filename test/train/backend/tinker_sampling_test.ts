import { afterEach, expect, test } from "vitest";
import type { SampleRequest } from "../../../src/engine/contract/backend.ts";
import { TinkerSampling } from "../../../src/train/backend/tinker/sampling.ts";
import { TinkerSession } from "../../../src/train/backend/tinker/session.ts";
import { Transport } from "../../../src/train/backend/tinker/transport.ts";

const REQUEST: SampleRequest = {
  prompt_ids: [1, 2, 3],
  params: { max_tokens: 100, temperature: 1, top_p: 1, top_k: 0, stop_token_ids: [9] },
  seed: 2 ** 31 + 5,
};
const SAMPLE = { tokens: [7, 8], logprobs: [-1, -2], stop_reason: "stop" };
const opened: TinkerSession[] = [];
afterEach(() => opened.splice(0).forEach((session) => void session.close()));

/** A service that loses the result of the first `lost` requests, then answers with `result`. */
async function sampling(of: { lost?: number; result?: object; flags?: object; contextLength?: number }) {
  const asked: Record<string, unknown>[] = [];
  const [inFlight, lost] = [{ now: 0, most: 0 }, of.lost ?? 0];
  const replies: Record<string, (body: Record<string, unknown>) => Response> = {
    "client/config": () => Response.json(of.flags ?? {}),
    create_session: () => Response.json({ session_id: "s" }),
    asample: (body) => {
      asked.push(body);
      inFlight.most = Math.max(inFlight.most, ++inFlight.now);
      return Response.json({ request_id: `r${asked.length}` });
    },
    retrieve_future: () => {
      inFlight.now--;
      if (asked.length <= lost) return new Response("dropped", { status: 410 });
      return Response.json(of.result ?? { sequences: [SAMPLE] });
    },
  };
  const transport = new Transport({
    baseUrl: "http://service",
    apiKey: "tml-key",
    clock: { now: () => 0, sleep: async () => {} },
    fetch: async (url, init) => replies[url.split("/api/v1/")[1]!]!(JSON.parse(String(init.body))),
  });
  const session = await TinkerSession.open(transport, { sdkVersion: "1", wire: "json" });
  opened.push(session);
  const contextLength = of.contextLength ?? 64;
  return { asked, inFlight, sampling: new TinkerSampling({ session, contextLength }) };
}

const AT = { samplerId: "sampler", version: 3 };

test("a request whose result the service lost is sent again under its number, five times", async () => {
  const recovers = await sampling({ lost: 5 });
  const [sequence] = await recovers.sampling.draw([REQUEST], AT);
  expect(sequence).toEqual({ tokens: [7, 8], logprobs: [-1, -2], finish_reason: "stop", weight_version: 3 });
  expect(recovers.asked.map(({ seq_id }) => seq_id)).toEqual([0, 0, 0, 0, 0, 0]);
  const fails = await sampling({ lost: 6 });
  await expect(fails.sampling.draw([REQUEST], AT)).rejects.toThrow(/no longer has it/);
  expect(fails.asked).toHaveLength(6);
});

test("a request is written in the service's terms, within the context", async () => {
  const { sampling: service, asked } = await sampling({ contextLength: 10 });
  await service.draw([REQUEST, { ...REQUEST, params: { ...REQUEST.params, top_k: 4, max_tokens: 2 } }], AT);
  expect(asked[0]).toEqual({
    sampling_session_id: "sampler",
    seq_id: 0,
    num_samples: 1,
    prompt: { chunks: [{ type: "encoded_text", tokens: [1, 2, 3] }] },
    // SkyRL's seeds have 31 bits; -1 is all tokens.
    sampling_params: { max_tokens: 7, temperature: 1, top_p: 1, top_k: -1, stop: [9], seed: 5 },
    prompt_logprobs: false,
    topk_prompt_logprobs: 0,
    type: "sample",
  });
  expect(asked[1]).toMatchObject({ seq_id: 1, sampling_params: { top_k: 4, max_tokens: 2 } });
});

test("no more requests are in flight than the service allows", async () => {
  const { sampling: service, inFlight } = await sampling({ flags: { sample_max_concurrent_requests: 3 } });
  expect(await service.draw(Array(20).fill(REQUEST), AT)).toHaveLength(20);
  expect(inFlight.most).toBe(3);
});

test("log-probs of rows lie at their tokens, 0 at first tokens; rows of one token need no request", async () => {
  const { sampling: service, asked } = await sampling({
    result: { sequences: [SAMPLE], prompt_logprobs: [null, -0.5, -0.25] },
  });
  const rows = { tokens: Uint32Array.of(1, 2, 3, 4), offsets: Uint32Array.of(0, 3, 4) };
  expect([...(await service.score(rows, "base"))]).toEqual([0, -0.5, -0.25, 0]);
  expect(asked).toHaveLength(1);
  expect(asked[0]).toMatchObject({ sampling_session_id: "base", prompt_logprobs: true });
});

test("a result of another size fails", async () => {
  const two = await sampling({ result: { sequences: [SAMPLE, SAMPLE] } });
  await expect(two.sampling.draw([REQUEST], AT)).rejects.toThrow("it has 2 samples for a request of one");
  const none = await sampling({});
  const rows = { tokens: Uint32Array.of(1, 2), offsets: Uint32Array.of(0, 2) };
  await expect(none.sampling.score(rows, "base")).rejects.toThrow("it has no log-probs of the prompt");
});
