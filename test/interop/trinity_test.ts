/** What a run sends to Trinity-RFT, read by Trinity's own code: its loader and validators, its tasksets, its workflow runner. */
import { cp, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { RewardResult } from "../../src/cluster/rewards/protocol.ts";
import type { Service } from "../../src/cluster/rewards/service.ts";
import { type TrinityJobRequest, trinityJob } from "../../src/cluster/trinity/job.ts";
import { composeConfig } from "../../src/train/config/compose.ts";
import { singleTurn } from "../../src/train/task/rollout.ts";
import { CHATML, chatTokenizer } from "../fixtures/chat.ts";
import { post, rowsFrom, TOKEN, testService } from "../fixtures/cluster.ts";
import { hasShared, sharedPath } from "../fixtures/shared.ts";
import { readConfig } from "../train/config/disk.ts";
import { installTrinity, runTrinityChecks, type TrinityPython } from "./trinity.ts";
import { CHAT, draw, GAMES, game, reward, TASKS } from "./verl_run.ts";

const found = hasShared ? await installTrinity() : "there is no tokenizer to read rows with";
if (typeof found === "string") console.warn(`SKIPPED: Trinity's own code: ${found}`);
const trinity = found as TrinityPython;

interface Row {
  readonly tokens: readonly number[];
  readonly prompt_length: number;
  readonly mask: readonly number[];
  readonly logprobs: readonly number[];
  readonly reward: number;
  readonly run: number;
  readonly metrics: Readonly<Record<string, number>>;
}

interface Checked {
  readonly configs: readonly Readonly<Record<string, unknown>>[];
  readonly tasks: readonly number[];
  readonly results: readonly {
    readonly completed: number;
    readonly message: string | null;
    readonly rows: readonly Row[];
  }[];
  readonly asked: readonly Readonly<Record<string, unknown>>[];
}

let root: string;
let model: string;
beforeAll(async () => {
  if (typeof found === "string") return;
  root = await mkdtemp(join(tmpdir(), "grpu-trinity-"));
  model = join(root, "model");
  await cp(sharedPath("models/stories260k"), model, { recursive: true });
  const config = join(sharedPath("models/stories260k"), "tokenizer_config.json");
  const text = JSON.stringify({ ...JSON.parse(await readFile(config, "utf8")), chat_template: CHAT });
  await rm(join(model, "tokenizer_config.json"), { force: true });
  await writeFile(join(model, "tokenizer_config.json"), text);
});
afterAll(async () => {
  if (root) await rm(root, { recursive: true, force: true });
});

function jobOf(more: readonly string[], options: Partial<TrinityJobRequest> = {}) {
  const overrides = [
    ...["rllm/backend=trinity", `actor_rollout_ref.model.path=${model}`, "trainer.default_local_dir=/shared/run"],
    ...["trainer.n_gpus_per_node=4", "rllm.data.train_batch_size=3", "training.num_minibatches=1"],
    ...["rllm.data.max_prompt_length=64", "rllm.data.max_response_length=48", ...more],
  ];
  const plan = trinityJob({
    ...{ composed: composeConfig({ readConfig, overrides, env: {} }), submission_id: "grpu-test", hasAgent: false },
    ...{ train: TASKS, val: [], service: { url: "http://127.0.0.1:1", token: TOKEN }, readPackaged: readConfig },
    ...options,
  });
  expect(plan.problems).toEqual([]);
  return plan.job;
}

async function lay(files: ReadonlyMap<string, Uint8Array>): Promise<string> {
  const folder = await mkdtemp(join(root, "job-"));
  for (const [name, bytes] of files) {
    await mkdir(dirname(join(folder, name)), { recursive: true });
    await writeFile(join(folder, name), bytes);
  }
  return folder;
}

/** Configurations of users, with what Trinity must make of them. Its rloo and ppo import verl, which is not installed here. */
const CONFIGS: readonly (readonly [more: readonly string[], expected: object])[] = [
  [[], { mode: "both", trainer_gpus: 3, rollout_gpus: 1, train_batch_size: 24, sync: [1, 0, "SyncStyle.FIXED"] }],
  [
    ["rllm.algorithm.kl_beta=0.01", "training.learning_rate=2e-5"],
    { algorithm: ["grpo", "low_var_kl", "ppo"], lr: 2e-5 },
  ],
  [
    ["rllm.algorithm.eps_clip=0.1", "rllm.algorithm.eps_clip_high=0.3"],
    { policy_loss_args: expect.objectContaining({ clip_range_low: 0.1, clip_range_high: 0.3 }) },
  ],
  [
    ["trainer.nnodes=2", "actor_rollout_ref.rollout.tensor_model_parallel_size=2"],
    { trainer_gpus: 4, rollout_gpus: 4 },
  ],
  [
    ["trinity.synchronizer.sync_offset=1", "rllm.trainer.total_batches=7"],
    { total_steps: 7, sync: [1, 1, "SyncStyle.FIXED"] },
  ],
  [["trinity.mode=bench"], { mode: "bench", rollout_gpus: 1 }],
  [["trinity.mode=explore", "trinity.buffer.trainer_input.experience_buffer.path=/tmp/x.db"], { mode: "explore" }],
  [["model_engine=megatron"], { mode: "both" }],
];

describe.skipIf(typeof found === "string")("Trinity-RFT 0.6.0", () => {
  test("loads and checks the configurations, and runs a single reply's reward for each task", async () => {
    const service = await testService({
      tasks: { train: TASKS, val: TASKS.slice(0, 2) },
      rollout: singleTurn("stories", reward),
      isSingleTurn: true,
      tokenizer: chatTokenizer(CHATML),
      settings: { workflow: { retry_limit: 1 } },
    });
    try {
      const jobs = CONFIGS.map(([more]) => jobOf(more, { val: TASKS.slice(0, 2) }));
      const folder = await lay(jobs[0]!.files);
      const names = jobs.map((_, i) => `config_${i}.yaml`);
      for (const [i, job] of jobs.entries()) await writeFile(join(folder, names[i]!), job.files.get("trinity.yaml")!);
      const replies = ["once upon", "there was a girl", "Lily"];
      const checked = await runTrinityChecks<Checked>(trinity, {
        ...{ folder, env: { GRPU_URL: service.url, GRPU_TOKEN: TOKEN } },
        body: { root: join(root, "shared"), configs: names, tasks: 6, times: 3, replies },
      });
      for (const [i, [more, expected]] of CONFIGS.entries())
        expect([more, checked.configs[i]]).toEqual([more, expect.objectContaining(expected)]);
      await expectRewards(service, checked, replies);
    } finally {
      await service.close();
    }
  });

  /** The scores are the service's own, and a task with a failing judgement is a failed task. */
  async function expectRewards(service: Service, { tasks, results }: Checked, replies: readonly string[]) {
    expect(tasks).toHaveLength(6);
    let failed = 0;
    for (const [i, task] of tasks.entries()) {
      const items = replies.map((solution) => ({ solution, extra_info: { split: "train", grpu_task: task } }));
      const { results: own } = await post<{ results: RewardResult[] }>(`${service.url}/rewards`, {
        id: `own-${i}`,
        items,
      });
      const error = own.find((each) => "error" in each);
      if (error) {
        failed++;
        expect(results[i]).toMatchObject({ completed: 0, rows: [] });
        expect(results[i]!.message).toContain(`The reward of train task ${task} failed: `);
        continue;
      }
      const scores = own.map((each) => ("score" in each ? each.score : Number.NaN));
      expect(results[i]!.rows.map((row) => row.reward)).toEqual(scores);
      expect(results[i]!.rows.map((row) => row.run)).toEqual([0, 1, 2]);
      expect(results[i]!.rows.map((row) => row.metrics.reward)).toEqual(scores);
    }
    expect(failed).toBeLessThan(6);
  }

  test("trains on the tokens, masks, log-probs and rewards of an agent's rollouts", async () => {
    const service = await testService({
      ...{ tasks: { train: GAMES, val: [] }, rollout: game, tokenizer: chatTokenizer(CHATML) },
    });
    try {
      const job = jobOf(["actor_rollout_ref.rollout.name=vllm"], { hasAgent: true, train: GAMES });
      const checked = await runTrinityChecks<Checked>(trinity, {
        ...{ folder: await lay(job.files), env: { GRPU_URL: service.url, GRPU_TOKEN: TOKEN } },
        body: { root: join(root, "shared"), configs: [], tasks: GAMES.length, times: 2, replies: [] },
      });
      expect(checked.asked[0]).toMatchObject({ temperature: 1, top_p: 1, n: 1, logprobs: 0 });
      for (const [i, index] of checked.tasks.entries()) {
        const first = { task: { split: "train", index }, max_prompt_length: 64, max_response_length: 48 };
        const [row] = await rowsFrom({ url: service.url, draw, first });
        const { completed, rows } = checked.results[i]!;
        expect(completed).toBe(2);
        for (const found of rows) {
          expect(found.tokens).toEqual([...row!.prompt_ids, ...row!.response_ids]);
          expect(found.prompt_length).toBe(row!.prompt_ids.length);
          expect(found.mask).toEqual(row!.response_mask);
          expect(found.mask).toContain(0);
          expect(found.logprobs).toEqual(row!.response_logprobs!.map(Math.fround));
          expect(found.reward).toBe(row!.reward);
          expect(found.metrics).toMatchObject({ num_turns: row!.num_turns, acc: Number(row!.is_correct) });
        }
        expect(rows.map((found) => found.run)).toEqual([0, 1]);
      }
      expect(service.stats().rollouts.open).toBe(0);
    } finally {
      await service.close();
    }
  });
});
