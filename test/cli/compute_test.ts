import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { F32, F64, furthest, readGolden } from "../engine/algorithm/golden.ts";
import { grpu } from "../fixtures/cli.ts";
import { devices as opened } from "../fixtures/devices.ts";

const SMALL = fileURLToPath(new URL("../fixtures/math/small.rollouts.jsonl", import.meta.url));

const run = (args: string, input = "") => grpu(args.split(" "), { input });

async function runJson(args: string, stdin?: string) {
  const { code, out, err } = await run(`${args} --json`, stdin);
  expect(err).toBe("");
  expect(code).toBe(0);
  return JSON.parse(out);
}

const devices = opened.map(({ info: { kind } }) => ({ name: kind, tolerance: kind === "cpu" ? F64 : F32 }));

describe.each(devices)("grpu compute on $name prints the published figures", ({ name, tolerance }) => {
  const on = `--input ${SMALL} --device ${name}`;

  test("advantages", async () => {
    const [golden] = readGolden<{ advantages: number[][] }[]>("small.advantages.json");
    const got = await runJson(`compute advantages ${on} --estimator grpo`);
    expect(got.estimator).toBe("grpo");
    expect(got.advantages.map((row: number[]) => row.length)).toEqual(golden!.advantages.map((row) => row.length));
    expect(furthest(got.advantages.flat(), golden!.advantages.flat(), tolerance)).toBeUndefined();
    expect(got.metrics["batch/total"]).toBeGreaterThan(0);
  });

  test("loss with importance weights and settings", async () => {
    const cases =
      readGolden<{ loss: string; rollout_is_weights: unknown; value: number; dlogprobs: number[][] }[]>(
        "small.losses.json",
      );
    const golden = cases.find(({ loss, rollout_is_weights }) => loss === "vanilla" && rollout_is_weights !== null)!;
    const got = await runJson(
      `compute loss ${on} --loss vanilla --agg token-mean --set clip_ratio_high=0.28 --rollout-is token`,
    );
    expect(furthest([got.loss], [golden.value], tolerance)).toBeUndefined();
    expect(furthest(got.dlogprobs.flat(), golden.dlogprobs.flat(), tolerance)).toBeUndefined();
    expect(Object.keys(got.metrics)).toContain("actor/pg_clipfrac");
  });

  test("loss by the loss's own aggregation, and no other", async () => {
    const own = await runJson(`compute loss ${on} --loss gspo`);
    expect(await runJson(`compute loss ${on} --loss gspo --agg seq-mean-token-mean`)).toEqual(own);
    const { code, err } = await grpu(`compute loss ${on} --loss gspo --agg token-sum`.split(" "));
    expect(code).not.toBe(0);
    expect(err).toContain("Cannot set --agg token-sum: the loss gspo brings its own aggregation, seq-mean-token-mean");
  });

  test("kl", async () => {
    const golden = readGolden<{ kl: string; loss_token_mean: number; dlogprobs: number[][] }[]>("small.kl.json");
    const k3 = golden.find(({ kl }) => kl === "k3+")!;
    const got = await runJson(`compute kl ${on} --kl k3+ --agg token-mean`);
    expect(furthest([got.loss], [k3.loss_token_mean], tolerance)).toBeUndefined();
    expect(furthest(got.dlogprobs.flat(), k3.dlogprobs.flat(), tolerance)).toBeUndefined();
    expect(got.values).toHaveLength(11);
  });
});

test("rollout correction prints weights, mask and metrics, and takes presets", async () => {
  const got = await runJson(`compute rollout-correction --input ${SMALL} --set preset=decoupled_token_is`);
  const cases = readGolden<{ rollout_is: string | null; weights: number[][]; metrics: object }[]>(
    "small.rollout_correction.json",
  );
  const golden = cases.find(({ rollout_is }) => rollout_is === "token")!;
  expect(furthest(got.weights.flat(), golden.weights.flat(), F64)).toBeUndefined();
  expect(Object.keys(got.metrics).sort()).toEqual(Object.keys(golden.metrics).sort());
});

test("standard input is read, rows come out in their order", async () => {
  const lines = [
    { group: "a", reward: 1, mask: [1, 1] },
    { group: "b", reward: 3, mask: [1] },
    { group: "a", reward: 0, mask: [0, 1] },
  ];
  const text = lines.map((line) => JSON.stringify(line)).join("\n");
  const got = await runJson("compute advantages --input - --estimator rloo --device cpu", text);
  expect(got.advantages).toEqual([[1, 1], [3], [0, -1]]);
});

test("without --json people get a table on the error stream and nothing on the other", async () => {
  const { out, err, code } = await run(`compute advantages --input ${SMALL} --estimator grpo --device cpu`);
  expect(code).toBe(0);
  expect(out).toBe("");
  expect(err).toMatch(/informative/);
  expect(err).toMatch(/critic\/score\/mean/);
});

const folder = mkdtempSync(join(tmpdir(), "grpu-compute-"));
const plugin = join(folder, "mine.ts");
writeFileSync(
  plugin,
  `import { registerEstimator } from "grpu";
registerEstimator({
  name: "doubled", settings: { factor: 2 }, scope: "row",
  estimate: (batch, { factor }) => ({ level: "row", values: Float64Array.from(batch.scores, (s) => s * factor) }),
});
`,
);

test("--import brings a user's estimator with its own settings", async () => {
  const got = await runJson(
    `compute advantages --input - --estimator doubled --device cpu --import ${plugin} --set factor=3`,
    '{"group":"a","reward":2,"mask":[1,0]}',
  );
  expect(got.advantages).toEqual([[6, 0]]);
});

test.each([
  ["compute advantages --input nowhere.jsonl --estimator grpo --device cpu", /no such file/, 4],
  [`compute advantages --input ${SMALL} --estimator grop --device cpu`, /nearest: grpo/],
  [`compute advantages --input ${SMALL} --estimator grpo --device cpu --set clip=1`, /norm_adv_by_std_in_grpo/],
  [`compute loss --input ${SMALL} --loss vanilla --device cpu --set clip_ratio_c=0.5`, /above 1/],
  [`compute rollout-correction --input ${SMALL} --set preset=nothing`, /decoupled_token_is/],
])("%s is refused", async (args, message, status = 3) => {
  const { code, err } = await run(args);
  expect(code).toBe(status);
  expect(err).toMatch(message);
});

test("a number that is not finite is refused with its file, line and token", async () => {
  const { code, err } = await run(
    "compute advantages --input - --estimator grpo --device cpu",
    '{"reward":1,"values":[1,1e999]}',
  );
  expect(code).toBe(4);
  expect(err).toMatch(/finite number \(Infinity at token 1\).*stdin:1/s);
});
