import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { BatchOrder } from "../../../src/train/data/order.ts";
import { mergeSteps, packTrajectories } from "../../../src/train/data/pack.ts";
import { tasksFromJsonl, tasksFromParquet } from "../../../src/train/data/rows.ts";
import type { RewardedTrajectory, Step, TrajectoryGroup } from "../../../src/train/data/types.ts";

function step(prompt_ids: number[], response_ids: number[], advantage?: Step["advantage"]): Step {
  const logprobs = response_ids.map((id) => -id / 10);
  return { prompt_ids, response_ids, logprobs, advantage, model_response: "", reward: 0, done: false };
}

function group(name: string, trajectories: Step[][]): TrajectoryGroup {
  const made = trajectories.map((steps, i): RewardedTrajectory => ({ uid: `${name}/${i}`, name, steps, reward: i }));
  return { group_id: `t:${name}`, task_id: "t", group_role: name, trajectories: made, metadata: [] };
}

test("mergeSteps() joins a step whose prompt repeats all that came before", () => {
  const rows = mergeSteps([step([1, 2], [3]), step([1, 2, 3, 9], [4, 5])]);
  expect(rows).toHaveLength(1);
  expect(rows[0]!.tokens).toEqual([1, 2, 3, 9, 4, 5]);
  expect(rows[0]!.mask).toEqual([0, 0, 1, 0, 1, 1]);
  expect(rows[0]!.logprobs).toEqual([0, 0, -0.3, 0, -0.4, -0.5]);
});

test("mergeSteps() joins a step whose prompt is all that came before, and nothing more", () => {
  const rows = mergeSteps([step([1, 2], [3]), step([1, 2, 3], [4]), step([1, 2, 3, 4], [])]);
  expect(rows.map(({ tokens, mask }) => ({ tokens, mask }))).toEqual([{ tokens: [1, 2, 3, 4], mask: [0, 0, 1, 1] }]);
});

test.each([
  ["an edited history", [1, 7, 3, 9]],
  ["a response left out", [1, 2, 9]],
  ["a shorter prompt", [1]],
])("mergeSteps() begins a new row at %s", (_, prompt) => {
  const rows = mergeSteps([step([1, 2], [3]), step(prompt, [4])]);
  expect(rows.map((row) => row.tokens)).toEqual([
    [1, 2, 3],
    [...prompt, 4],
  ]);
});

test("mergeSteps() leaves out steps without a token", () => {
  expect(mergeSteps([step([], [])])).toEqual([]);
});

test("packTrajectories() lays rows end to end and keeps their trajectory and group", () => {
  const packed = packTrajectories([
    group("a", [[step([1], [2])], [step([1], [3]), step([5], [6, 7])]]),
    group("b", [[step([8, 9], [4])]]),
  ]);
  expect([...packed.offsets]).toEqual([0, 2, 4, 7, 10]);
  expect([...packed.tokens]).toEqual([1, 2, 1, 3, 5, 6, 7, 8, 9, 4]);
  expect([...packed.mask]).toEqual([0, 1, 0, 1, 0, 1, 1, 0, 0, 1]);
  expect([...packed.trajectoryOfRow]).toEqual([0, 1, 1, 2]);
  expect([...packed.groupOfTrajectory]).toEqual([0, 0, 1]);
  expect(packed.givenAdvantages).toBeUndefined();
});

test("packTrajectories() never trains on a row's first token", () => {
  expect([...packTrajectories([group("a", [[step([], [1, 2])]])]).mask]).toEqual([0, 1]);
});

test("packTrajectories() keeps the advantages that steps carry, and marks their tokens", () => {
  const packed = packTrajectories([
    group("a", [[step([1], [2, 3], [0.5, -1])], [step([1], [2], 0)], [step([1], [2])]]),
  ]);
  const { values, isGiven } = packed.givenAdvantages!;
  expect([...values]).toEqual([0, 0.5, -1, 0, 0, 0, 0]);
  expect([...isGiven]).toEqual([0, 1, 1, 0, 1, 0, 0]);
});

test("packTrajectories() has no advantages where only an untrained token carries one", () => {
  expect(packTrajectories([group("a", [[step([], [1], 5)], [step([1], [2])]])]).givenAdvantages).toBeUndefined();
});

test("an epoch's batches hold each row at most once, and epochs differ", () => {
  const order = new BatchOrder({ size: 10, batchSize: 3, seed: 4 });
  expect(order.perEpoch).toBe(3);
  const epoch = (number: number) => [0, 1, 2].map((i) => [...order.batch(number * 3 + i).rows]);
  expect(new Set(epoch(0).flat()).size).toBe(9);
  expect(epoch(0)).not.toEqual(epoch(1));
  expect(order.batch(5).epoch).toBe(1);
});

test("a batch depends on its number alone, not on the batches drawn before it", () => {
  const options = { size: 10, batchSize: 3, seed: 4 };
  const order = new BatchOrder(options);
  for (const number of [7, 2, 8, 2, 7])
    expect([...order.batch(number).rows]).toEqual([...new BatchOrder(options).batch(number).rows]);
});

test("a batch larger than the data is refused", () => {
  const order = new BatchOrder({ size: 3, batchSize: 4, seed: 0 });
  for (const draw of [() => order.perEpoch, () => order.batch(0)])
    expect(draw).toThrow(/one needs 4 rows, and the training data has 3/);
});

test("tasksFromJsonl() keeps the row, its id and its source", () => {
  const [a, b] = tasksFromJsonl('{"prompt":"1+1=","answer":2}\n\n{"id":7,"question":"why?","data_source":"x"}\n', {
    file: "d/sums.jsonl",
  });
  expect(a).toEqual({
    id: "sums-0",
    instruction: "1+1=",
    metadata: { prompt: "1+1=", answer: 2, data_source: "sums" },
  });
  expect(b).toMatchObject({ id: "7", instruction: "why?", metadata: { data_source: "x" } });
});

test.each([
  ["not json", /it is not JSON.*sums.jsonl:2/],
  ["[1]", /not a JSON object \(\[1\]\).*sums.jsonl:2/],
  ['{"text":"x"}', /no field "prompt" .*\(it has text\).*sums.jsonl:2/s],
])("tasksFromJsonl() names the line of %s", (line, message) => {
  expect(() => tasksFromJsonl(`{"prompt":"a"}\n${line}`, { file: "sums.jsonl" })).toThrow(message);
});

test("tasksFromJsonl() names the line of a row that is nested too deep", () => {
  const deep = `{"prompt":"a","x":${"[".repeat(50_000)}${"]".repeat(50_000)}}`;
  expect(() => tasksFromJsonl(`{"prompt":"a"}\n${deep}`, { file: "sums.jsonl" })).toThrow(
    /^Cannot read the row: it is nested too deep \(sums\.jsonl:2\)\.$/,
  );
});

test("a prompt may be a conversation, or become one", () => {
  const row = JSON.stringify({ prompt: [{ role: "user", content: [{ type: "text", text: "hi" }] }], id: 1 });
  const system = { role: "system", content: "be brief" };
  const [plain, given] = [
    { role: "user", content: "why?" },
    { role: "user", content: "hi" },
  ];
  const read = (options: object) => tasksFromJsonl(`${row}\n{"prompt":"why?","id":2}`, { file: "c.jsonl", ...options });
  const prompts = (options: object) => read(options).map(({ instruction, messages }) => [instruction, messages]);
  expect(prompts({})).toEqual([
    ["hi", [given]],
    ["why?", undefined],
  ]);
  expect(prompts({ promptType: "messages", systemPrompt: "be brief" })).toEqual([
    ["hi", [system, given]],
    ["why?", [system, plain]],
  ]);
  expect(() => tasksFromJsonl('{"prompt":[{"role":"user"}]}', { file: "c.jsonl" })).toThrow(
    /message 0: its content must be a string.*c\.jsonl:1/s,
  );
});

test("tasksFromParquet() reads rows as from JSONL", async () => {
  const { buffer, byteOffset, byteLength } = readFileSync(
    new URL("../../fixtures/rollouts/lists.parquet", import.meta.url),
  );
  const file = buffer.slice(byteOffset, byteOffset + byteLength) as ArrayBuffer;
  const tasks = await tasksFromParquet(file, { file: "lists.parquet", promptKey: "group" });
  expect(tasks).toHaveLength(3);
  expect(tasks[0]).toMatchObject({ id: "lists-0", metadata: { data_source: "lists" } });
  expect(tasks.map((task) => task.instruction)).toEqual(tasks.map((task) => task.metadata.group));
  await expect(tasksFromParquet(file, { file: "lists.parquet" })).rejects.toThrow(
    /no field "prompt".*lists.parquet:1/s,
  );
  await expect(tasksFromParquet(new ArrayBuffer(9), { file: "x.parquet" })).rejects.toThrow(
    /does not begin and end with PAR1.*x.parquet/s,
  );
  const cutOff = new Uint8Array(file.slice(0));
  cutOff.fill(0, 4, -8);
  await expect(tasksFromParquet(cutOff.buffer, { file: "x.parquet" })).rejects.toThrow(
    /Cannot read the Parquet file.*x.parquet/s,
  );
});
