/** Rows that the host takes part in: constraints, alternatives, listeners. The others must not notice. */
import { describe, expect, test } from "vitest";
import { ANY_OBJECT } from "../../../../src/chat/grammar/json.ts";
import { schemaRule } from "../../../../src/chat/grammar/schema.ts";
import { GrammarConstraint } from "../../../../src/chat/grammar/vocabulary.ts";
import type { SampledSequence, SampleRequest, TokenConstraint } from "../../../../src/engine/contract/backend.ts";
import { byteTokenizer } from "../../../../src/engine/model/files/tokenizer.ts";
import { LanguageModel } from "../../../../src/engine/model/language_model.ts";
import { overDevices } from "../../../fixtures/devices.ts";
import { pack } from "../../../fixtures/golden_model.ts";
import { expectClose } from "../../../fixtures/numbers.ts";
import { SMALL_MODEL } from "../../../fixtures/small_model.ts";

const tokenizer = byteTokenizer();
const [EOS] = tokenizer.eosTokenIds as [number];
const CONFIG = { ...SMALL_MODEL, vocabSize: tokenizer.vocabSize, contextLength: 160, eosTokenIds: [EOS] };

function request(seed: number, more: Partial<SampleRequest> = {}, params: Partial<SampleRequest["params"]> = {}) {
  const given = { temperature: 1, top_p: 1, top_k: -1, max_tokens: 40, stop_token_ids: [EOS], ...params };
  return { prompt_ids: [65 + (seed % 3), 66, 67], seed, ...more, params: given };
}

const SCHEMA = {
  type: "object",
  properties: { ok: { type: "boolean" }, n: { type: "integer", minimum: 10, maximum: 99 }, s: { enum: ["x", "yy"] } },
  required: ["ok", "n", "s"],
};
const shape = new GrammarConstraint(schemaRule(SCHEMA), tokenizer);

/** What was drawn, without how it was. */
const withoutMasks = ({ constrained: _, ...drawn }: SampledSequence) => drawn;

overDevices("rows with the host", (device) => {
  // A pipelined chunk has half the steps.
  const model = LanguageModel.create(device, CONFIG, { seed: 5, pipelined: false });
  const sample = (requests: readonly SampleRequest[]) => model.sample(requests, { weightVersion: 0 });
  const free = [0, 1, 2, 3].map((seed) => request(seed));

  test("replies of random weights keep their schema, greedy, hot and with top-k and top-p", async () => {
    const settings = [{ temperature: 0 }, { temperature: 1.7 }, { top_k: 3 }, { top_p: 0.2, temperature: 0.6 }];
    const requests = settings.flatMap((params, i) =>
      [0, 1, 2].map((seed) => request(10 * i + seed, { allowed: shape }, { ...params, max_tokens: 120 })),
    );
    const replies = await sample(requests);
    for (const { tokens, finish_reason } of replies) {
      expect(finish_reason).toBe("stop");
      expect(tokens.at(-1)).toBe(EOS);
      const value = JSON.parse(tokenizer.decode(tokens));
      expect(value).toEqual({ ok: expect.any(Boolean), n: expect.any(Number), s: expect.stringMatching(/^(x|yy)$/) });
      expect(value.n >= 10 && value.n <= 99).toBe(true);
    }
    expect(new Set(replies.map(({ tokens }) => tokens.join())).size).toBeGreaterThan(6);
  });

  test("a reply says how many of its tokens a mask limited, and that its constraint was given up", async () => {
    const countdown = (free: number, more: object = {}): TokenConstraint => ({
      start() {
        let drawn = 0;
        return {
          fill: (mask) => void mask.fill(0xffffffff),
          advance: () => void drawn++,
          get isFree() {
            return drawn >= free;
          },
          ...more,
        };
      },
    });
    const all = { max_tokens: 6, stop_token_ids: [] };
    const [masked, partly, relaxed, free, unlimited] = await sample([
      request(1, { allowed: shape }, { max_tokens: 6 }),
      request(2, { allowed: countdown(2) }, all),
      request(3, { allowed: countdown(0, { isRelaxed: true }) }, all),
      request(4, { allowed: countdown(0) }, all),
      request(5, {}, all),
    ]);
    expect(masked!.constrained).toEqual({ masked_tokens: masked!.tokens.length });
    expect(partly!.constrained).toEqual({ masked_tokens: 2 });
    expect(relaxed!.constrained).toEqual({ masked_tokens: 0, is_relaxed: true });
    for (const each of [free, unlimited]) expect(each).not.toHaveProperty("constrained");
  });

  test("what a request's own code throws fails its sequence; the others draw their bits", async () => {
    const fault = (): never => {
      throw new Error("a caller's mistake");
    };
    const once = (at: number) => {
      let calls = 0;
      return () => (++calls === at ? fault() : undefined);
    };
    const constraint = (own: Partial<ReturnType<TokenConstraint["start"]>>): TokenConstraint => ({
      start: () => ({ fill: (mask) => void mask.fill(0xffffffff), advance: () => {}, ...own }),
    });
    const faulty = [
      { onTokens: once(1) },
      { onTokens: once(2) },
      { ends: fault },
      { allowed: { start: fault } },
      { allowed: constraint({ fill: fault }) },
      { allowed: constraint({ fill: once(3) }), top_logprobs: 2 },
      { allowed: constraint({ advance: once(2) }) },
    ].map((own, i) => request(20 + i, own));
    const beside = [...free, request(9, { allowed: shape }), request(8, { top_logprobs: 2 })];
    const alone = await sample(beside);
    const [failed, ended]: [number[], number[]] = [[], []];
    const replies = await model.sample([...faulty, ...beside], {
      weightVersion: 0,
      onEnd: (_, index) => void ended.push(index),
      onFail: (error, index) => {
        expect(error).toMatchObject({ message: "a caller's mistake" });
        failed.push(index);
      },
    });
    expect(failed.sort((a, b) => a - b)).toEqual([...faulty.keys()]);
    expect(ended.length).toBe(beside.length);
    expect(replies.slice(faulty.length)).toEqual(alone);
    // `once(3)`: two tokens were drawn under a mask, and the third is dropped with its alternatives.
    expect([replies[5]!.tokens.length, replies[5]!.top_logprobs?.length]).toEqual([2, 2]);
    for (const one of faulty.slice(2, 5)) await expect(sample([one])).rejects.toThrow("a caller's mistake");
  });

  test("tokens are reported every 4 steps, and every 16 where nobody reads them live", async () => {
    const sizes = async (isLive?: boolean) => {
      const parts: number[] = [];
      const onTokens = (tokens: readonly number[]) => void parts.push(tokens.length);
      await sample([request(1, { onTokens, isLive }, { max_tokens: 22, stop_token_ids: [] })]);
      return parts;
    };
    expect(await sizes()).toEqual([1, 4, 4, 4, 4, 4, 1]);
    expect(await sizes(false)).toEqual([1, 16, 5]);
  });

  test("a constraint that is free at first draws what it would draw under a mask throughout", async () => {
    /** After an even token the next two must be odd. @param skips says so where any token may come */
    const oddAfterEven = (skips: boolean): TokenConstraint => ({
      start: () => {
        let forced = 0;
        return {
          fill: (mask) => mask.fill(forced > 0 ? 0xaaaaaaaa : 0xffffffff),
          advance: (token) => {
            forced = forced > 0 ? forced - 1 : token % 2 === 0 ? 2 : 0;
          },
          get isFree() {
            return skips && forced === 0;
          },
        };
      },
    });
    const replies = async (skips: boolean) => {
      const heard: number[][] = [];
      const requests = [0, 1, 2].map((seed) => {
        const own: number[] = [];
        heard.push(own);
        const onTokens = (tokens: readonly number[]) => void own.push(...tokens);
        return request(seed, { allowed: oddAfterEven(skips), onTokens }, { stop_token_ids: [] });
      });
      const drawn = await sample([...requests, ...free]);
      expect(drawn.slice(0, 3).map(({ tokens }) => tokens)).toEqual(heard);
      return drawn;
    };
    const [lazy, masked] = [await replies(true), await replies(false)];
    expect(lazy.map(withoutMasks)).toEqual(masked.map(withoutMasks));
    expect(masked.slice(0, 3).map(({ constrained }) => constrained?.masked_tokens)).toEqual([40, 40, 40]);
    for (const { constrained } of lazy.slice(0, 3)) expect(constrained!.masked_tokens).toBeLessThan(40);
    expect(lazy.slice(3)).toEqual(await sample(free));
    for (const { tokens } of lazy.slice(0, 3)) {
      expect(tokens.length).toBe(40);
      expect(tokens.some((token) => token % 2 === 0)).toBe(true);
      for (let i = 0; i + 2 < tokens.length; i++)
        if (tokens[i]! % 2 === 0) {
          expect([tokens[i + 1]! % 2, tokens[i + 2]! % 2]).toEqual([1, 1]);
          i += 2;
        }
    }
  });

  test("a reply without end is cut at its length", async () => {
    const [reply] = await sample([
      request(1, { allowed: new GrammarConstraint(ANY_OBJECT, tokenizer) }, { max_tokens: 4 }),
    ]);
    expect([reply!.tokens.length, reply!.finish_reason, reply!.tokens[0]]).toEqual([4, "length", 123]);
  });

  test("the log-probs are those without the mask, with the bits that they have where it hides nothing", async () => {
    const requests = [0, 1, 2].map((seed) => request(seed, { allowed: shape }, { temperature: 0.7 }));
    const replies = await sample(requests);
    const rows = pack(replies.map(({ tokens }, i) => [...requests[i]!.prompt_ids, ...tokens]));
    const { logprobs } = await model.logprobs(rows, { policy: "current", temperature: 0.7 });
    for (const [i, reply] of replies.entries()) {
      const start = rows.offsets[i]! + 3;
      const scored = logprobs.subarray(start, start + reply.tokens.length);
      expectClose(reply.logprobs, scored, { relative: 0, absolute: 2e-5 }, `reply ${i}`);
    }
    const anything: TokenConstraint = { start: () => ({ fill: (mask) => mask.fill(0xffffffff), advance: () => {} }) };
    const [plain, masked] = await Promise.all([sample(free), sample(free.map((it) => ({ ...it, allowed: anything })))]);
    expect(masked.map(withoutMasks)).toEqual(plain);
    for (const { tokens, constrained } of masked) expect(constrained).toEqual({ masked_tokens: tokens.length });
  });

  test("rows beside them keep their bits, and a mixed batch draws what each draws alone", async () => {
    const mixed = [
      ...free,
      request(4, { allowed: shape }),
      request(5, { allowed: shape }, { temperature: 0.5 }),
      request(6, { top_logprobs: 3 }),
      request(7, { top_logprobs: 2, allowed: shape }),
    ];
    const together = await sample(mixed);
    for (const [i, one] of mixed.entries()) expect((await sample([one]))[0]).toEqual(together[i]);
  });

  test("alternatives are the most likely tokens, and contain a greedy reply", async () => {
    const [greedy, hot] = await sample([
      request(1, { top_logprobs: 4 }, { temperature: 0, max_tokens: 6 }),
      request(1, { top_logprobs: 2 }, { temperature: 2, max_tokens: 6 }),
    ]);
    expect(greedy!.top_logprobs).toHaveLength(greedy!.tokens.length);
    for (const [i, top] of greedy!.top_logprobs!.entries()) {
      expect(top[0]!.token).toBe(greedy!.tokens[i]);
      expectClose([top[0]!.logprob], [greedy!.logprobs[i]!], { relative: 0, absolute: 2e-5 }, `token ${i}`);
      const values = top.map(({ logprob }) => logprob);
      expect([...values].sort((a, b) => b - a)).toEqual(values);
      expect(top).toHaveLength(4);
    }
    for (const [i, top] of hot!.top_logprobs!.entries()) {
      const own = top.find(({ token }) => token === hot!.tokens[i]);
      if (own) expectClose([own.logprob], [hot!.logprobs[i]!], { relative: 0, absolute: 2e-5 }, `hot ${i}`);
      expect(top[1]!.logprob).toBeGreaterThan(-Math.log(CONFIG.vocabSize) - 1);
    }
    expect((await sample([free[0]!]))[0]).not.toHaveProperty("top_logprobs");
  });

  test("a listener gets every token in order while the sequence is drawn, and changes no bit", async () => {
    const heard: number[][] = [];
    const logprobs: number[] = [];
    const long = request(3, {}, { stop_token_ids: [] });
    const listening = {
      ...long,
      onTokens: (tokens: readonly number[], its: readonly number[]) => {
        heard.push([...tokens]);
        logprobs.push(...its);
      },
    };
    const [quiet] = await sample([long]);
    const [reply] = await sample([listening]);
    expect(reply).toEqual(quiet);
    expect(heard.flat()).toEqual(reply!.tokens);
    expect(logprobs).toEqual(reply!.logprobs);
    // The first token, then a few at a time.
    expect(heard.map(({ length }) => length)).toEqual([1, ...Array(9).fill(4), 3]);
  });

  test("a caller that went away ends its sequence within a chunk", async () => {
    let isGone = false;
    const leaving = request(3, { onTokens: () => (isGone = true), ends: () => isGone }, { stop_token_ids: [] });
    const [reply] = await sample([leaving]);
    expect([reply!.tokens.length, reply!.finish_reason]).toEqual([2, "stop"]);
  });
});

describe("words of the mask", () => {
  test("a vocabulary that ends inside a word", () => {
    expect(tokenizer.vocabSize % 32).not.toBe(0);
    const mask = new Uint32Array(Math.ceil(tokenizer.vocabSize / 32)).fill(0xffffffff);
    shape.start().fill(mask);
    expect([...mask].filter((word) => word !== 0)).toEqual([0, 0, 0, 2 ** (123 - 96)].filter((word) => word !== 0));
  });
});
