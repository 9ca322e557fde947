/** What a run sends to verl, read by verl's own code: Hydra, the data set, reward workers and agent loops of each version. */
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { ClusterTrajectory, RewardResult } from "../../src/cluster/rewards/protocol.ts";
import type { Service } from "../../src/cluster/rewards/service.ts";
import { type VerlJobRequest, verlJob } from "../../src/cluster/verl/job.ts";
import { verlVersion } from "../../src/cluster/verl/versions.ts";
import { composeConfig } from "../../src/train/config/compose.ts";
import { isOurs } from "../../src/train/config/fields/verl.ts";
import { LEVEL, originOf } from "../../src/train/config/yaml/layer.ts";
import { equalValues, getAt, leaves, type Tree } from "../../src/train/config/yaml/tree.ts";
import { singleTurn } from "../../src/train/task/rollout.ts";
import { CHATML, chatTokenizer } from "../fixtures/chat.ts";
import { post, rowsFrom, TOKEN, testService } from "../fixtures/cluster.ts";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import { readConfig } from "../train/config/disk.ts";
import { type FlakyProxy, flakyProxy } from "./flaky_proxy.ts";
import { installVerl, runChecks, type VerlPython } from "./verl.ts";
import { CHAT, type Checked, draw, GAMES, game, ODD, REPLIES, reward, TASKS } from "./verl_run.ts";

const VERSIONS = ["0.8.0", "0.9.1"];
const found = hasShared ? await installVerl([...VERSIONS, "0.9.0"]) : "there is no tokenizer to read rows with";
if (typeof found === "string") console.warn(`SKIPPED: verl's own code: ${found}`);
const verl = found as VerlPython;

let root: string;
let model: string;
let service: Service;
let agents: Service;
beforeAll(async () => {
  if (typeof found === "string") return;
  root = await mkdtemp(join(tmpdir(), "grpu-verl-"));
  model = join(root, "model");
  await cp(sharedPath("models/stories260k"), model, { recursive: true });
  await run("chmod", ["-R", "u+w", model]);
  const config = join(model, "tokenizer_config.json");
  await writeFile(config, JSON.stringify({ ...JSON.parse(await readFile(config, "utf8")), chat_template: CHAT }));
  const tokenizer = chatTokenizer(CHATML);
  const tasks = { train: TASKS, val: TASKS.slice(0, 4) };
  const settings = { workflow: { retry_limit: 1 } };
  service = await testService({
    tasks,
    rollout: singleTurn("stories", reward),
    isSingleTurn: true,
    tokenizer,
    settings,
  });
  agents = await testService({ tasks: { train: GAMES, val: [] }, rollout: game, tokenizer });
});
afterAll(async () => {
  await service?.close();
  await agents?.close();
  if (root) await rm(root, { recursive: true, force: true });
});

const run = promisify(execFile);

/** Configurations of users, from the shortest to the odd. */
const OVERRIDES: readonly (readonly string[])[] = [
  [],
  ["model_engine=megatron", "rllm.algorithm.kl_beta=0.01", "rllm.algorithm.eps_clip_high=0.28"],
  [
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
  ],
  ["trainer.experiment_name='a \\'quoted\\', [odd] {name}'", "+actor_rollout_ref.rollout.engine_kwargs.vllm.seed=3"],
  [
    "rllm.algorithm.adv_estimator=rloo",
    "rllm.algorithm.loss_fn=gspo",
    "rllm.rollout.val.temperature=0",
    "rllm.disable_thinking=true",
  ],
];

function requestOf(name: string, more: readonly string[], options: Partial<VerlJobRequest> = {}): VerlJobRequest {
  const version = verlVersion(name);
  const overrides = [
    ...[
      "rllm/backend=verl",
      `verl=${version.tree}`,
      "actor_rollout_ref.rollout.name=vllm",
      `actor_rollout_ref.model.path=${model}`,
    ],
    ...["trainer.default_local_dir=/shared/run", "trainer.n_gpus_per_node=1", "rllm.data.train_batch_size=4"],
    ...["rllm.data.max_prompt_length=64", "rllm.data.max_response_length=48", "training.num_minibatches=1"],
    ...["actor_rollout_ref.actor.use_dynamic_bsz=true", ...more],
  ];
  const composed = composeConfig({ readConfig, overrides, env: {} });
  return {
    ...{ composed, version, submission_id: "grpu-test", hasAgent: false, readPackaged: readConfig },
    ...{ train: TASKS, val: TASKS.slice(0, 4), service: { url: "http://127.0.0.1:1", token: TOKEN } },
    ...options,
  };
}

function overridesOf(request: VerlJobRequest): readonly string[] {
  const { overrides, problems } = verlJob(request);
  expect(problems).toEqual([]);
  return overrides;
}

async function lay(files: ReadonlyMap<string, Uint8Array>, folder: string): Promise<void> {
  for (const [name, bytes] of files) {
    await mkdir(dirname(join(folder, name)), { recursive: true });
    await writeFile(join(folder, name), bytes);
  }
}

describe.skipIf(typeof found === "string").each(VERSIONS)("verl %s", (version) => {
  let checked: Checked;
  let proxy: FlakyProxy;
  let before: ReturnType<Service["stats"]>;
  beforeAll(async () => {
    const folder = await mkdtemp(join(root, "job-"));
    const games = { hasAgent: true, train: GAMES, val: [] };
    const agent = verlJob(requestOf(version, ["rllm.data.train_batch_size=3"], games));
    expect(agent.problems).toEqual([]);
    await lay(agent.job.files, folder);
    await writeFile(join(folder, "games.jsonl"), agent.job.files.get("train.jsonl")!);
    await lay(verlJob(requestOf(version, [])).job.files, folder);
    proxy = await flakyProxy(service.url, { 0: "busy", 1: "broken", 2: "lost", 3: "failed", 4: "late" }, 4000);
    before = service.stats();
    checked = await runChecks<Checked>(verl, {
      ...{ version, folder },
      env: { GRPU_TOKEN: TOKEN },
      body: {
        configs: OVERRIDES.map((more) => overridesOf(requestOf(version, more))),
        run: overridesOf(requestOf(version, [])),
        agent: [...agent.overrides, "data.train_files=games.jsonl"],
        rewards: REPLIES,
        odd: ODD,
        urls: { rewards: proxy.url, agents: agents.url },
        seconds: 2,
      },
    });
  });
  afterAll(() => proxy?.close());

  test("takes every override, resolves to what was composed, and validates it", () => {
    for (const [i, more] of OVERRIDES.entries()) {
      const { config, refusal } = checked.configs[i]!;
      expect(refusal, more.join(" ")).toBeNull();
      const { composed } = requestOf(version, more);
      const differing = [...leaves(composed.config)].filter(([path, value]) => {
        const level = originOf(composed.origins, path)?.level ?? LEVEL.native;
        const isSent = level >= LEVEL.file && !isOurs(path) && path !== "model_engine";
        return isSent && !equalValues(getAt(config, path), value);
      });
      expect(differing).toEqual([]);
    }
  });

  test("has the estimators and losses of our table", () => {
    expect(checked.estimators).toEqual([...verlVersion(version).estimators].sort());
    expect(checked.losses).toEqual([...verlVersion(version).losses].sort());
  });

  test("reads the rows with a real tokenizer, and drops the one whose prompt is too long", () => {
    const rowsOf = (split: string, indices: readonly number[]) =>
      indices.map((index) => ({ split, index, grpu_task: index }));
    const train = TASKS.map((_, i) => i).filter((i) => i !== 7);
    expect(checked.data.rows).toEqual([...rowsOf("train", train), ...rowsOf("val", [0, 1, 2, 3])]);
    const prompt = [{ role: "user", content: "Tell a story of 0 cats" }];
    expect(checked.data.first).toMatchObject({ raw_prompt: prompt, data_source: "stories", index: 0 });
    expect(JSON.stringify(checked.data.first)).not.toContain("answer");
  });

  test("has the rewards of 1,000 replies from the service, each judged once, over a network that fails", async () => {
    const items = REPLIES.map(({ text, split, task }) => ({
      ...{ data_source: "stories", solution: text, ground_truth: "" },
      extra_info: { split, grpu_task: task },
    }));
    expect(proxy.faults).toEqual(["busy", "broken", "lost", "failed", "late"]);
    const after = service.stats();
    expect(after.judgements.total - before.judgements.total).toBe(1000);
    expect(after.repeats - before.repeats).toBeGreaterThanOrEqual(2);
    // A few requests carry them all.
    expect(proxy.requests).toBeLessThan(20);
    const direct = await post<{ results: RewardResult[] }>(`${service.url}/rewards`, {
      id: `direct-${version}`,
      items,
    });
    const expected = direct.results.map((result, i) =>
      "error" in result
        ? { error: `The reward of ${REPLIES[i]!.split} task ${REPLIES[i]!.task} failed: ${result.error}` }
        : {
            reward_score: result.score,
            reward_extra_info: { score: result.score, acc: Number(result.is_correct) },
          },
    );
    expect(checked.rewards).toEqual(expected);
    const failed = checked.rewards.filter((each) => "error" in each).length;
    expect(failed).toBeGreaterThan(50);
    expect(failed).toBeLessThan(500);
  });

  const expectedRows = async () => {
    const rows: ClusterTrajectory[] = [];
    for (const index of GAMES.keys()) {
      const first = { task: { split: "train", index }, max_prompt_length: 64, max_response_length: 48 };
      rows.push(...(await rowsFrom({ url: agents.url, draw, first })));
    }
    return rows;
  };

  test("trains on the tokens, masks, log-probs and rewards of the agent's rollouts", async () => {
    const { tensors, columns, asked, keys } = checked.agent;
    const rows = await expectedRows();
    expect(rows.length).toBe(GAMES.length);
    for (const [i, row] of rows.entries()) {
      const size = row.response_ids.length;
      expect(size).toBeGreaterThan(10);
      const padding = 64 - row.prompt_ids.length;
      expect(tensors.prompts![i]!.slice(padding)).toEqual(row.prompt_ids);
      expect(tensors.attention_mask![i]).toEqual([
        ...Array(padding).fill(0),
        ...Array(64 - padding + size).fill(1),
        ...Array(48 - size).fill(0),
      ]);
      expect(tensors.responses![i]!.slice(0, size)).toEqual(row.response_ids);
      expect(tensors.response_mask![i]).toEqual([...row.response_mask, ...Array(48 - size).fill(0)]);
      expect(tensors.rollout_log_probs![i]!.slice(0, size)).toEqual(row.response_logprobs);
      expect(row.response_mask).toContain(0);
      const scores = tensors.rm_scores![i]!;
      expect([scores[size - 1], scores.reduce((a, b) => a + b, 0)]).toEqual([row.reward, row.reward]);
      expect(columns.__num_turns__![i]).toBe(String(row.num_turns));
    }
    expect([...keys].sort()).toEqual(["acc", "score"]);
    expect(columns.min_global_steps![0]).toBe("6");
    expect(columns.max_global_steps![0]).toBe("7");
    expect(asked[0]!.sampling_params).toMatchObject({ temperature: 1, top_p: 1, top_k: -1, logprobs: true });
  });

  test.skipIf(!verlVersion(version).hasV1)("of the V1 trainer gets the same rows, n of each prompt", async () => {
    const { stored, states } = checked.v1!;
    const rows = await expectedRows();
    expect(states).toEqual({ u0: "finished", u1: "finished", u2: "finished" });
    expect(stored.length).toBe(GAMES.length * 8);
    for (const each of stored) {
      const [, task, session] = /^u(\d)_(\d)_0$/.exec(each.key)!;
      const row = rows[Number(task)]!;
      expect(Number(session)).toBeLessThan(8);
      expect([each.prompts, each.responses, each.response_mask]).toEqual([
        row.prompt_ids,
        row.response_ids,
        row.response_mask,
      ]);
      expect(each.rollout_log_probs).toEqual(row.response_logprobs);
      expect(each.rm_scores.at(-1)).toBe(row.reward);
      expect(each.extra.reward_extra_info).toEqual({ score: row.reward, acc: Number(row.is_correct) });
      expect(each.tag).toMatchObject({ status: "success", min_global_steps: 6, max_global_steps: 7, global_steps: 5 });
    }
  });

  test("gets no row that it would break on, and a rollout whose generation fails is given up", () => {
    const [usual, empty, overlong, cut, failed] = checked.odd;
    expect(usual).toMatchObject({ prompt_ids: [1, 2], reward_score: 0.5 });
    expect(empty).toMatchObject({ response_ids: [2], response_mask: [0], response_logprobs: [0], reward_score: 0.5 });
    expect(overlong).toBe("A prompt has 65 tokens, and data.max_prompt_length is 64.");
    expect(cut).toMatchObject({ response_ids: Array(48).fill(3), response_mask: Array(48).fill(1) });
    expect(failed).toBe("the engine has gone, at most 48 tokens");
    expect(agents.stats().rollouts.given_up).toBeGreaterThan(0);
    expect(agents.stats().rollouts.open).toBe(0);
  });

  test("is told why a service does not answer", () => {
    expect(checked.refusals[0]).toMatch(/^Cannot ask the service at http\S+\/health: status 401: /);
    expect(checked.refusals[1]).toMatch(
      /^Cannot ask the service at http:\/\/127\.0\.0\.1:1\/health: ClientConnectorError: /,
    );
  });
});

test.skipIf(typeof found === "string")("verl 0.9.0 takes the overrides of its version", async () => {
  const overrides = overridesOf(requestOf("0.9.0", ["rllm.algorithm.kl_beta=0.01"]));
  const script = fileURLToPath(new URL("../../scripts/verl_trees.py", import.meta.url));
  const { stdout } = await run(verl.python, [script, verl.wheelOf("0.9.0"), "--resolve", ...overrides], {
    maxBuffer: 2 ** 26,
  });
  const { dp } = JSON.parse(stdout) as { dp: Tree };
  expect(getAt(dp, "actor_rollout_ref.actor.kl_loss_coef")).toBe(0.01);
  expect(getAt(dp, "reward.custom_reward_function.path")).toBe("verl_reward.py");
  // Every setting that it is said to lack is missing, and every other one is there.
  const { lacks } = verlVersion("0.9.0");
  const tree = composeConfig({
    readConfig,
    overrides: ["rllm/backend=verl", "verl=0.9.1"],
    env: {},
    allowMissing: true,
  }).config;
  const own = /^(rollout|async_training|model_engine)\b|use_rollout_log_probs|return_multi_modal_inputs/;
  for (const [path] of leaves(tree))
    if (!isOurs(path) && !own.test(path))
      expect([path, getAt(dp, path) === undefined]).toEqual([path, lacks!.test(path)]);
});
