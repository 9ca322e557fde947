/** The official Python clients of OpenAI's and Anthropic's APIs, unchanged, against the chat APIs. */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { serve } from "@hono/node-server";
import { expect, test } from "vitest";
import { chatTokenizer, THINKING } from "../fixtures/chat.ts";
import { adder, scriptedPolicy } from "../fixtures/scripted.ts";

const run = promisify(execFile);
const CLIENT = fileURLToPath(new URL("agents_client.py", import.meta.url));
const CACHE = fileURLToPath(new URL("../../.cache/interop", import.meta.url));

/** The Python of an environment with the clients; AGENTS_PYTHON names one that has them. `undefined` without Python or network. */
async function findPython(): Promise<string | undefined> {
  const given = process.env.AGENTS_PYTHON;
  if (given) return given;
  const folder = `${CACHE}/agents`;
  const python = `${folder}/bin/python`;
  try {
    await mkdir(CACHE, { recursive: true });
    if (!existsSync(python)) await run("python3", ["-m", "venv", folder]);
    await run(python, ["-m", "pip", "install", "--quiet", "openai", "anthropic"], { timeout: 600_000 });
    return python;
  } catch (error) {
    console.warn(`SKIPPED: Python's openai and anthropic: ${(error as Error).message.slice(0, 600)}`);
    return undefined;
  }
}

const python = await findPython();

test.skipIf(!python)("tool loops, streams, errors and counts of the Python clients", async () => {
  const { policy } = scriptedPolicy({ tokenizer: chatTokenizer(THINKING), script: adder, pieces: 3 });
  const server = serve({ port: 0, hostname: "127.0.0.1", fetch: (request) => policy.fetch(request) });
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address() as AddressInfo;
  try {
    const { stdout } = await run(python!, [CLIENT, `http://127.0.0.1:${port}`, policy.model], { timeout: 120_000 });
    const of = JSON.parse(stdout);
    const text = "it is 3, 日本 🙂";
    const { length } = policy.steps[1]!.response_ids;
    expect(of.chat).toEqual({ pieces: expect.any(Number), text, logprobs: length, tokens: length });
    expect(of.chat.pieces).toBeGreaterThan(1);
    expect(of.responses).toEqual({ deltas: expect.any(Number), last: "response.completed", text });
    expect(of.responses.deltas).toBeGreaterThan(1);
    expect(of.messages).toMatchObject({ types: ["thinking", "text", "tool_use"], stop_reason: "tool_use", text });
    expect(of.messages.counted).toBe(true);
    expect(of.messages.pieces).toBeGreaterThan(1);
    expect(of.errors).toEqual(["temperature", "invalid_request_error"]);
    expect(of.models).toEqual([policy.model]);
    // Every second call continues on the tokens of the first.
    for (const at of [0, 2, 4]) {
      const [first, second] = policy.steps.slice(at, at + 2);
      const whole = [...first!.prompt_ids, ...first!.response_ids];
      expect(second!.prompt_ids.slice(0, whole.length)).toEqual(whole);
    }
  } finally {
    server.close();
  }
});
