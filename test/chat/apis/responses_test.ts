/** Log-probs of OpenAI's `/v1/responses`, however the tokens arrive. */
import { describe, expect, test } from "vitest";
import { type ChatEngine, createFetch, LOCAL_BASE_URL } from "../../../src/chat/endpoint.ts";
import { parseReply } from "../../../src/chat/reply.ts";
import { chatTokenizer, THINKING } from "../../fixtures/chat.ts";

const END = "<|im_end|>";
const CALL = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>';
const tokenizer = chatTokenizer(THINKING);

interface Item {
  readonly type: string;
  readonly content: readonly { readonly logprobs: readonly { readonly token: string }[] }[];
}

/** The log-probs of the message, as texts of their tokens. @param pieces tokens a time; 0: known as a whole only */
async function loggedOf(reply: string, pieces: number): Promise<string> {
  const tokens = tokenizer.encode(reply, { addSpecialTokens: false });
  const logprobs = tokens.map((_, i) => -i);
  const model_response = tokenizer.decode(tokens);
  const parse = { format: "hermes" as const, id: "call" };
  const engine: ChatEngine = {
    model: "m",
    tokenizer,
    complete: () => Promise.reject(new Error("unused")),
    chat: async (_, { onStart, onTokens } = {}) => {
      if (pieces > 0) onStart?.(0, { prompt_ids: [1], parse: { ...parse, isReasoning: false } });
      for (let at = 0; at < tokens.length && pieces > 0; at += pieces)
        onTokens?.(0, tokens.slice(at, at + pieces), logprobs.slice(at, at + pieces));
      const drawn = { prompt_ids: [1], response_ids: tokens, logprobs, finish_reason: "stop" as const };
      return [{ ...drawn, model_response, message: parseReply(model_response, parse) }];
    },
  };
  const body = JSON.stringify({ input: "hello", include: ["message.output_text.logprobs"] });
  const answer = await createFetch(engine)(`${LOCAL_BASE_URL}/responses`, { method: "POST", body });
  const { output } = (await answer.json()) as { output: Item[] };
  const message = output.find(({ type }) => type === "message")!;
  return message.content[0]!.logprobs.map(({ token }) => token).join("");
}

describe.each([1, 2, 3, 5, 0])("%i tokens at a time", (pieces) => {
  test.each([
    ["a message alone", `a < b <t c${END}`, `a < b <t c${END}`],
    ["after reasoning", `<think>why a</think>\n\nso it is${END}`, `so it is${END}`],
  ])("%s has the log-probs of its own tokens", async (_, reply, expected) => {
    expect((await loggedOf(reply, pieces)).trimStart()).toBe(expected);
  });

  test("none of a call's tokens, and at most white space of those before it", async () => {
    const logged = await loggedOf(`let me see\n${CALL}${END}`, pieces);
    expect(logged).toContain("let me se");
    expect(logged).not.toContain("add");
  });
});
