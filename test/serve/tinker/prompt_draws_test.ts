/** Tokens drawn at the places of a prompt: their distribution, their log-probs, and the message that the SDK reads. */
import { expect, test } from "vitest";
import { openDevice } from "../../../src/engine/compute/open.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { drawRow } from "../../../src/engine/model/train/drawn_tokens.ts";
import { fields } from "../../../src/leaves/protobuf.ts";
import { LocalPolicy } from "../../../src/train/backend/local/engine_policy.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";
import { draw, openServer } from "./tinker_client.ts";

test.each([
  ["each token has its share of [0, 1)", 1, [0, 0.09, 0.11, 0.69, 0.71, 0.999], [0, 0, 1, 1, 2, 2]],
  ["a higher temperature evens the shares out", 1e4, [0.3, 0.34, 0.66, 0.67], [0, 1, 1, 2]],
  ["at 0 the most likely one is drawn", 0, [0, 0.5, 0.999], [1, 1, 1]],
])("%s", (_, temperature, uniforms, expected) => {
  const shares = [0.1, 0.6, 0.3];
  const tokens = new Uint32Array(uniforms.length);
  const logprobs = new Float32Array(uniforms.length);
  const logits = Float32Array.from(shares, (share) => Math.log(share) + 3);
  drawRow(logits, { temperature, uniform: (j) => uniforms[j]!, tokens, logprobs });
  expect([...tokens]).toEqual(expected);
  // At temperature 1, whatever they were drawn at.
  for (const [j, id] of tokens.entries()) expect(logprobs[j]).toBeCloseTo(Math.log(shares[id]!), 5);
});

test("the local engine draws from the model's distribution, by the seed, whatever shares the batch", async () => {
  const model = LanguageModel.create(await openDevice({ device: "cpu" }), { ...SMALL_MODEL, layers: 1 }, { seed: 3 });
  const policy = new LocalPolicy(model, model.untrained);
  const prompt = [1, 5, 6];
  const [k, temperature] = [1024, 0.7];
  const drawn = async (of: { seed: number; temperature: number }, others: readonly (readonly number[])[] = []) => {
    const draws = [...others.map(() => undefined), { k, ...of }];
    const scores = await policy.scorePrompts([...others, prompt], { topk: 0, own: false, draws });
    return scores.at(-1)!.draws!;
  };
  const { tokens, logprobs } = await drawn({ seed: 4, temperature });
  expect(tokens).toHaveLength(2 * k);
  const everything = Array.from({ length: SMALL_MODEL.vocabSize }, (_, id) => id);
  for (const place of [1, 2]) {
    const targets = { positions: Uint32Array.from(everything, () => place), tokens: Uint32Array.from(everything) };
    const [exact] = await policy.scorePrompts([prompt], { topk: 0, own: false, targets: [targets] });
    const weights = everything.map((id) => Math.exp(exact!.targets![id]! / temperature));
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    const row = tokens.subarray((place - 1) * k, place * k);
    for (const id of everything) {
      const share = weights[id]! / total;
      const count = row.filter((token) => token === id).length;
      // Five standard deviations of a binomial count.
      expect(Math.abs(count - k * share)).toBeLessThan(5 * Math.sqrt(k * share * (1 - share)) + 1);
    }
    for (const [j, id] of row.entries()) expect(logprobs[(place - 1) * k + j]).toBeCloseTo(exact!.targets![id]!, 4);
  }
  expect(await drawn({ seed: 4, temperature }, [[7, 8, 9, 2]])).toEqual({ tokens, logprobs });
  expect((await drawn({ seed: 5, temperature })).tokens).not.toEqual(tokens);
  const { tokens: greedy } = await drawn({ seed: 4, temperature: 0 });
  const [best] = await policy.scorePrompts([prompt], { topk: 1, own: false });
  expect([greedy[0], greedy[k]]).toEqual([best!.top!.tokens[1], best!.top!.tokens[2]]);
  model.release();
});

test("a request gets two tensors of [prompt length - 1, k]", async () => {
  const server = await openServer();
  const body = { session_id: await server.session(), sampling_session_seq_id: 0, base_model: "toy" };
  const { sampling_session_id: id } = (await server.post("create_sampling_session", body)).json;
  const prompt = (length: number) => ({
    chunks: [{ type: "encoded_text", tokens: Array.from({ length }, () => 1) }],
  });
  const { bytes } = await server.result("asample", draw(id, 1, { prompt: prompt(4), prompt_alt_tokens_k: 2 }));
  const message = [...fields(bytes)].find(({ number }) => number === 6)!;
  const tensors = [...fields(message.bytes)].map((tensor) => [...fields(tensor.bytes)]);
  const [data, dtype, ...shape] = tensors[0]!;
  expect([...new BigInt64Array(data!.bytes!.slice().buffer)]).toEqual([10n, 11n, 20n, 21n, 30n, 31n]);
  expect([dtype, ...shape].map((field) => Number(field!.varint))).toEqual([2, 3, 2]);
  const [values, type] = tensors[1]!;
  const logprobs = new Float32Array(values!.bytes!.slice().buffer);
  expect([...logprobs].map((value) => value.toFixed(1))).toEqual(["-1.0", "-1.1", "-2.0", "-2.1", "-3.0", "-3.1"]);
  expect(Number(type!.varint)).toBe(1);
  for (const [length, k] of [
    [4, 1025],
    [60, 600],
  ]) {
    const refused = draw(id, 10 + k!, { prompt: prompt(length!), prompt_alt_tokens_k: k });
    expect((await server.result("asample", refused)).json.error).toContain(`(${k} for each of ${length})`);
  }
  const plain = await server.result("asample", draw(id, 3, { prompt: prompt(4) }));
  expect([...fields(plain.bytes)].some(({ number }) => number === 6)).toBe(false);
});
