/** Log-probs of chosen tokens at chosen places of a prompt: as the SDK asks for them, and as it reads them. */
import { describe, expect, test } from "vitest";
import { bytesOf, fields, ProtobufWriter } from "../../../src/leaves/protobuf.ts";
import {
  encodeTargetLogprobs,
  MOST_PROMPT_CELLS,
  type PromptTargetTensor,
  promptTargets,
} from "../../../src/serve/tinker/protocol/prompt_targets.ts";
import { draw, openServer, type TestServer } from "./tinker_client.ts";

const OF = { promptLength: 4, vocabSize: 100 };
const dense = (data: number[], shape = [3, 2]): PromptTargetTensor => ({ data, dtype: "int64", shape });
const sparse = (data: number[], crow: number[], col: number[], shape = [3, 2]): PromptTargetTensor => ({
  ...dense(data, shape),
  sparse_crow_indices: crow,
  sparse_col_indices: col,
});

describe("target_prompt_logprobs", () => {
  test.each<[string, PromptTargetTensor, number[], number[]]>([
    ["dense", dense([-1, 7, 8, 9, -1, -1]), [1, 2, 2], [7, 8, 9]],
    ["dense, equal ids at one place", dense([5, 5, -1, -1, 0, 99]), [1, 1, 3, 3], [5, 5, 0, 99]],
    ["sparse", sparse([7, 8, 9], [0, 1, 1, 3], [1, 0, 1]), [1, 3, 3], [7, 8, 9]],
    ["sparse, with a cell that names nothing", sparse([-1, 8], [0, 0, 2, 2], [0, 1]), [2], [8]],
  ])("%s", (_, tensor, positions, tokens) => {
    const targets = promptTargets(tensor, OF);
    expect([[...targets.positions], [...targets.tokens]]).toEqual([positions, tokens]);
  });

  test.each<[string, PromptTargetTensor, string]>([
    ["no shape", { data: [1], dtype: "int64" }, "must have the shape [3, K], a row for each token of the prompt but"],
    ["a row per token", dense([1, 1, 1, 1], [4, 1]), "must have the shape [3, K]"],
    ["a vector", dense([1, 1, 1], [3]), "but its first ([3])"],
    ["too few cells", dense([1, 1, 1]), "of shape [3,2] must have 6 cells, or row starts and columns (3)"],
    ["columns without rows", { ...dense([1]), sparse_col_indices: [0] }, "must have 6 cells"],
    ["no token", dense([-1, -1, -1, -1, -1, -1]), "must name at least one token"],
    ["no cell", sparse([], [0, 0, 0, 0], []), "must name at least one token"],
    ["an id outside", sparse([100], [0, 1, 1, 1], [0]), "must hold token ids in [0, 100), or -1 for none (100)"],
    ["an id below", sparse([-2], [0, 1, 1, 1], [0]), "or -1 for none (-2)"],
    ["too few row starts", sparse([1], [0, 1, 1], [0]), "must have 4 row starts that ascend from 0 to 1"],
    ["row starts that descend", sparse([1, 1], [0, 2, 1, 2], [0, 0]), "must have 4 row starts that ascend from 0 to 2"],
    ["row starts not from 0", sparse([1], [1, 1, 1, 1], [0]), "must have 4 row starts"],
    ["row starts beyond", sparse([1], [0, 1, 1, 2], [0]), "must have 4 row starts"],
    ["a column beyond", sparse([1], [0, 1, 1, 1], [2]), "must have a column in [0, 2) for each of its 1 cells"],
    ["a column too few", sparse([1, 1], [0, 1, 1, 2], [0]), "must have a column in [0, 2) for each of its 2 cells"],
    [
      "too many cells",
      dense(new Array(MOST_PROMPT_CELLS + 1).fill(-1)),
      "may have 32768 cells (32769). Send only the cells that name a token, as a sparse tensor",
    ],
  ])("with %s is refused", (_, tensor, why) => {
    expect(() => promptTargets(tensor, OF)).toThrow("Cannot sample: target_prompt_logprobs ");
    expect(() => promptTargets(tensor, OF)).toThrow(why);
  });

  test("is answered in its own layout, with 0 where a cell named nothing", () => {
    const values = Float32Array.of(-0.5, -1);
    const written = (tensor: PromptTargetTensor) => [...fields(encodeTargetLogprobs(tensor, values).finish())];
    const [data, dtype, ...shape] = written(dense([-1, 7, -1, 9, -1, -1]));
    expect(data!.bytes).toEqual(bytesOf(Float32Array.of(0, -0.5, 0, -1, 0, 0)));
    expect([dtype!.varint, ...shape.map(({ number, varint }) => [number, varint])]).toEqual([1n, [4, 3n], [4, 2n]]);
    const [csr] = written(sparse([7, -1, 9], [0, 1, 1, 3], [1, 0, 1]));
    const parts = [...fields(csr!.bytes)].map(({ bytes }) => Buffer.from(bytes));
    expect([csr!.number, parts]).toEqual([
      2,
      [
        Buffer.from(bytesOf(Float32Array.of(-0.5, 0, -1))),
        Buffer.from(bytesOf(BigInt64Array.of(0n, 1n, 1n, 3n))),
        Buffer.from(bytesOf(BigInt64Array.of(1n, 0n, 1n))),
      ],
    ]);
  });
});

describe("a server", () => {
  const sampler = async (server: TestServer) => {
    const session_id = await server.session();
    const body = { session_id, sampling_session_seq_id: 0, base_model: "toy" };
    return (await server.post("create_sampling_session", body)).json.sampling_session_id as string;
  };
  const TARGETS = sparse([3, 4], [0, 2], [0, 2], [1, 3]);

  test("scores the targets, and the prompt's own tokens only where they are wanted", async () => {
    const server = await openServer();
    const id = await sampler(server);
    const only = await server.result("asample", draw(id, 0, { target_prompt_logprobs: TARGETS }));
    expect(server.engine.calls.slice(-2)).toEqual(["score 1 without their own", "sample 1"]);
    const expected = encodeTargetLogprobs(TARGETS, Float32Array.of(-3, -4)).finish();
    const read = (bytes: Uint8Array) => new Map([...fields(bytes)].map(({ number, bytes }) => [number, bytes]));
    expect(read(only.bytes).get(5)).toEqual(expected);
    expect(read(only.bytes).has(2)).toBe(false);
    const more = { target_prompt_logprobs: TARGETS, prompt_logprobs: true };
    const both = read((await server.result("asample", draw(id, 1, more))).bytes);
    expect(server.engine.calls.slice(-2)).toEqual(["score 1", "sample 1"]);
    expect([both.get(5), both.get(2)]).toEqual([expected, bytesOf(Float32Array.of(Number.NaN, -1))]);
    const none = read((await server.result("asample", draw(id, 2))).bytes);
    expect(none.has(5)).toBe(false);
  });

  test("refuses targets that do not fit, and takes as many as a prompt of its context may have", async () => {
    const server = await openServer();
    const id = await sampler(server);
    const wrong = await server.result("asample", draw(id, 0, { target_prompt_logprobs: dense([1, 2], [2, 1]) }));
    expect(wrong.json).toMatchObject({
      category: "user",
      error: expect.stringContaining("must have the shape [1, K]"),
    });
    const type = { ...TARGETS, dtype: "float32" };
    expect(await server.post("asample", draw(id, 1, { target_prompt_logprobs: type }))).toMatchObject({
      status: 422,
      json: { detail: expect.stringContaining("target_prompt_logprobs.dtype of the request: it must be int64") },
    });
    const prompt = { chunks: [{ type: "encoded_text", tokens: new Array(63).fill(1) }] };
    const half = MOST_PROMPT_CELLS / 2;
    const most = sparse(
      new Array(MOST_PROMPT_CELLS).fill(1),
      [0, half, ...new Array(61).fill(MOST_PROMPT_CELLS)],
      Array.from({ length: MOST_PROMPT_CELLS }, (_, i) => i % half),
      [62, half],
    );
    const large = await server.result("asample", draw(id, 2, { prompt, target_prompt_logprobs: most }));
    expect(large.status).toBe(200);
    expect(new ProtobufWriter().bytes(1, large.bytes).finish().length).toBeGreaterThan(4 * MOST_PROMPT_CELLS);
  });
});
