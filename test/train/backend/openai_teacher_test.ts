import { describe, expect, test } from "vitest";
import { OpenAiTeacher } from "../../../src/train/backend/openai_teacher.ts";
import { letterTokenizer } from "../../fixtures/table_backend.ts";

interface Asked {
  readonly url: string;
  readonly headers: Record<string, string>;
  readonly body: { prompt: number[]; echo: boolean };
}

/** A server whose log-prob of a token is minus its id tenths; `fails` are the statuses of its first replies. */
function server(of: { fails?: readonly number[]; reply?: object; text?: string } = {}) {
  const asked: Asked[] = [];
  const fails = [...(of.fails ?? [])];
  const fetch = async (url: string, init: RequestInit): Promise<Response> => {
    const body = JSON.parse(String(init.body)) as Asked["body"];
    asked.push({ url, headers: init.headers as Record<string, string>, body });
    const status = fails.shift();
    if (status === 0) throw new TypeError("fetch failed");
    if (status) return new Response("overloaded", { status });
    const token_logprobs = [null, ...body.prompt.slice(1).map((id) => -id / 10), -9];
    return Response.json(of.reply ?? { choices: [{ text: of.text ?? "", logprobs: { token_logprobs } }] });
  };
  const options = { baseUrl: "http://teacher:8000/v1/", model: "big", apiKey: "secret-key", fetch, pauseMs: 1 };
  return { asked, teacher: new OpenAiTeacher(options) };
}

const ROWS = { tokens: Uint32Array.of(1, 2, 3, 4, 5), offsets: Uint32Array.of(0, 3, 5) };
const OPTIONS = { temperature: 1, mask: Uint32Array.of(0, 1, 1, 0, 1) };

test("a row is one echoed request of token ids; the token drawn after it is left out", async () => {
  const { teacher, asked } = server();
  const found = await teacher.logprobs(ROWS, OPTIONS);
  for (const [t, value] of [0, -0.2, -0.3, 0, -0.5].entries()) expect(found[t]).toBeCloseTo(value, 6);
  expect(asked.map(({ body }) => body.prompt)).toEqual([
    [1, 2, 3],
    [4, 5],
  ]);
  expect(asked[0]).toMatchObject({
    url: "http://teacher:8000/v1/completions",
    headers: { Authorization: "Bearer secret-key" },
    body: { model: "big", echo: true, logprobs: 1, max_tokens: 1 },
  });
});

test("failures that pass are tried again", async () => {
  const { teacher, asked } = server({ fails: [0, 503, 429] });
  await teacher.logprobs({ tokens: Uint32Array.of(1, 2), offsets: Uint32Array.of(0, 2) }, OPTIONS);
  expect(asked).toHaveLength(4);
});

describe("a server that cannot teach is refused", () => {
  test.each<[string, Parameters<typeof server>[0], RegExp]>([
    ["one that refuses", { fails: [401, 401] }, /Cannot distil from big at http:\/\/teacher.*HTTP 401: overloaded/],
    [
      "one that keeps failing",
      { fails: [500, 500, 500, 500, 500, 500, 500, 500, 500, 500] },
      /failed 5 times .*HTTP 500/,
    ],
    [
      "one without echo",
      { reply: { choices: [{ text: "", logprobs: { token_logprobs: [-1] } }] } },
      /returned 1 log-probs for a prompt of \d tokens.*supports echo/,
    ],
    ["one without log-probs", { reply: { choices: [{ text: "", logprobs: null }] } }, /returned 0 log-probs/],
    ["another API", { reply: { hello: 1 } }, /its reply is no completion/],
  ])("%s", async (_, of, message) => {
    const error = await server(of)
      .teacher.logprobs(ROWS, OPTIONS)
      .catch((it: Error) => it);
    expect((error as Error).message).toMatch(message);
    expect((error as Error).message).not.toContain("secret-key");
  });

  test("another temperature than 1", async () => {
    await expect(server().teacher.logprobs(ROWS, { ...OPTIONS, temperature: 0.7 })).rejects.toThrow(
      /at temperature 0.7: the service has log-probs at 1/,
    );
  });

  test("one that reads other texts in the student's tokens", async () => {
    const student = letterTokenizer("abcd");
    await expect(server({ text: "abca" }).teacher.check("abc", student)).resolves.toBeUndefined();
    await expect(server({ text: "xyz" }).teacher.check("abc", student)).rejects.toThrow(
      /it reads "xyz" where the student wrote "abc"/,
    );
  });
});
