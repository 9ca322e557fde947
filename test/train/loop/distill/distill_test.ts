/** Distillation through the whole loop over a table policy: what each loss gets, learning without rewards, resuming, errors. */
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import type { PackedTokens } from "../../../../src/engine/contract/backend.ts";
import type { Teacher, TeacherOptions } from "../../../../src/engine/contract/teacher.ts";
import { FolderCheckpoints } from "../../../../src/train/log/checkpoint/folder_checkpoints.ts";
import type { LoopState, TrainOptions } from "../../../../src/train/loop/contract.ts";
import type { LoopSettings, Partly } from "../../../../src/train/loop/settings.ts";
import { train } from "../../../../src/train/loop/train.ts";
import { LETTER_SETTINGS, LETTERS, letterRun } from "../../../fixtures/loop.ts";
import { letterTokenizer } from "../../../fixtures/table_backend.ts";

type Loss = Partly<LoopSettings["distillation"]["distillation_loss"]>;

/** Answers a letter with itself in nine of ten cases, whatever the student sampled. */
function letterTeacher(more: Partial<Teacher> = {}) {
  const asked: { tokens: number[]; options: TeacherOptions }[] = [];
  const p = (tokens: Uint32Array, t: number) => (tokens[t] === tokens[t - 1] ? 0.9 : 0.1 / LETTERS.length);
  const teacher: Teacher = {
    name: "the copier",
    contextLength: 64,
    logprobs: async ({ tokens }: PackedTokens, options) => {
      asked.push({ tokens: [...tokens], options });
      return Float32Array.from(tokens, (_, t) => (t === 0 ? 0 : Math.log(p(tokens, t))));
    },
    close: () => {},
    ...more,
  };
  return { teacher, asked };
}

const settingsOf = (loss: Loss, more: Partly<LoopSettings> = {}): Partly<LoopSettings> => ({
  ...LETTER_SETTINGS,
  ...more,
  rollout: { n: 8, train: { max_tokens: 1 }, val: { max_tokens: 1 } },
  distillation: {
    enabled: true,
    ...more.distillation,
    distillation_loss: { loss_mode: "k1", use_policy_gradient: true, use_task_rewards: false, ...loss },
  },
});

function distilled(loss: Loss, options: Partial<TrainOptions> = {}, more: Partly<LoopSettings> = {}) {
  const { teacher, asked } = letterTeacher();
  return { asked, ...letterRun({ teacher, settings: settingsOf(loss, more), ...options }) };
}

describe("on-policy distillation", () => {
  test("brings a student to its teacher without a reward, and reports teacher_kl", async () => {
    const { run, log } = distilled(
      {},
      {
        rollout: async (task, policy) => {
          const step = await policy.complete(task.instruction);
          return {
            trajectories: [{ name: "copier", steps: [{ ...step, reward: 0 }], reward: 0 }],
            is_correct: step.model_response === task.instruction,
          };
        },
      },
    );
    await train(run);
    const kl = log.of("train").map(({ metrics }) => metrics.teacher_kl!);
    expect(kl).toHaveLength(12);
    expect(kl[0]).toBeGreaterThan(1);
    expect(kl.at(-1)).toBeLessThan(0.2);
    const held = log.of("val").map(({ metrics }) => metrics["val/copy/pass@1"]);
    expect(held[0]).toBeLessThan(0.6);
    expect(held.at(-1)).toBeGreaterThan(0.7);
  });

  test("brings a student to a teacher with another tokenizer, which reads its texts", async () => {
    const { teacher, asked } = letterTeacher({ tokenizer: letterTokenizer("dcba") });
    const { run, log } = distilled({}, { teacher }, { distillation: { shared_tokenizer: false } });
    await train(run);
    const [prompt] = teacher.tokenizer!.encode(run.tasks.train[0]!.instruction);
    expect(asked[0]!.tokens).toContain(prompt);
    const metrics = log.of("train").map((record) => record.metrics);
    expect(metrics[0]!.teacher_kl).toBeGreaterThan(1);
    expect(metrics.at(-1)!.teacher_kl).toBeLessThan(0.2);
    expect(metrics.at(-1)!["distillation/aligned"]).toBe(1);
    expect(log.of("val").at(-1)!.metrics["val/copy/pass@1"]).toBeGreaterThan(0.7);
  });

  test("advantages are coef (log p_teacher - log p_student), in place of the task's or added to them", async () => {
    const trained = async (loss: Loss) => {
      const { run, backend } = distilled(loss, {}, { trainer: { total_batches: 1, test_freq: 0 } });
      await train(run);
      return backend.batches[0]!;
    };
    const alone = await trained({ distillation_loss_coef: 3 });
    expect(alone.advantages.level).toBe("token");
    for (const [t, bit] of alone.mask.entries()) {
      const teacher = Math.log(alone.tokens[t] === alone.tokens[t - 1] ? 0.9 : 0.025);
      const expected = bit ? teacher - alone.rolloutLogprobs![t]! : 0;
      expect(alone.advantages.values[t]).toBeCloseTo(expected, 5);
    }
    const added = await trained({ use_task_rewards: true, distillation_loss_coef: 3 });
    const task = added.advantages.values.map((value, t) => value - 3 * alone.advantages.values[t]!);
    const rows = Array.from({ length: added.offsets.length - 1 }, (_, row) => task[added.offsets[row]! + 1]!);
    expect(Math.max(...rows)).toBeGreaterThan(0.3);
    expect(rows.reduce((sum, value) => sum + value, 0)).toBeCloseTo(0, 2);
  });

  test("as a loss of its own, the teacher is the reference of a KL term, and nothing else has a gradient", async () => {
    const { run, backend } = distilled(
      { loss_mode: "k3", use_policy_gradient: false },
      {},
      { trainer: { total_batches: 1, test_freq: 0 } },
    );
    await train(run);
    expect(backend.losses[0]).toMatchObject({ name: "importance_sampling", kl: { type: "k3", coef: 1 } });
    const { refLogprobs, advantages, mask } = backend.batches[0]!;
    expect([...advantages.values].every((value) => value === 0)).toBe(true);
    const t = mask.indexOf(1);
    expect(Math.exp(refLogprobs![t]!)).toBeGreaterThan(0.02);
  });

  test("over the teacher's likeliest tokens, the loss and its settings reach the backend", async () => {
    const top: Teacher["top"] = async ({ tokens }, { k }) => ({
      k,
      tokens: new Uint32Array(tokens.length * k).map((_, i) => tokens[Math.floor(i / k)]!),
      logprobs: new Float32Array(tokens.length * k).fill(-1),
    });
    const { teacher } = letterTeacher({ top });
    const loss = { loss_mode: "forward_kl_topk", topk: 2, use_policy_gradient: false, loss_max_clamp: 4 } as const;
    const once = {
      trainer: { total_batches: 1, test_freq: 0 },
      training: { ...LETTER_SETTINGS.training, num_minibatches: 2 },
    };
    const { run, backend } = distilled(loss, { teacher }, once);
    await train(run);
    expect(backend.losses).toHaveLength(2);
    expect(backend.losses[0]).toMatchObject({ name: "forward_kl_topk", settings: { coef: 1, loss_max_clamp: 4 } });
    for (const { teacherTop, tokens } of backend.batches) {
      expect(teacherTop!.tokens).toHaveLength(2 * tokens.length);
      expect([...teacherTop!.tokens].filter((_, i) => i % 2 === 0)).toEqual([...tokens]);
    }
    const both = distilled({ ...loss, use_task_rewards: true, distillation_loss_coef: 0.5 }, { teacher }, once);
    await train(both.run);
    expect(both.backend.losses.map(({ name }) => name)).toEqual(["ppo", "forward_kl_topk", "ppo", "forward_kl_topk"]);
    expect(both.backend.losses[1]!.settings.coef).toBe(0.5);
  });

  test("a run that is stopped and resumed equals one that is not, bit for bit", async () => {
    const whole = distilled({ kl_discount_factor: 0.5, use_task_rewards: true });
    await train(whole.run);
    const dir = await mkdtemp(join(tmpdir(), "distill-"));
    const checkpoints = () => new FolderCheckpoints<LoopState>(dir, { resumeMode: "auto" });
    const stop = new AbortController();
    const part = distilled(
      { kl_discount_factor: 0.5, use_task_rewards: true },
      { checkpoints: checkpoints(), signal: stop.signal },
    );
    const log = part.log.log.bind(part.log);
    part.log.log = (record) => {
      log(record);
      if (record.phase === "train" && record.step === 5) stop.abort();
    };
    expect((await train(part.run)).isComplete).toBe(false);
    const rest = distilled({ kl_discount_factor: 0.5, use_task_rewards: true }, { checkpoints: checkpoints() });
    await train(rest.run);
    expect(rest.backend.text()).toBe(whole.backend.text());
  });
});

describe("a privileged prompt", () => {
  const prompted = {
    distillation: { teacher_prompt: "{answer}{prompt}" },
    trainer: { total_batches: 1, test_freq: 0 },
  };

  test("replaces the student's prompt, and the values come back to the student's tokens", async () => {
    const { run, backend, asked } = distilled({}, {}, prompted);
    await train(run);
    const { tokens, offsets, mask, advantages, rolloutLogprobs } = backend.batches[0]!;
    const rows = offsets.length - 1;
    expect(asked[0]!.tokens).toHaveLength(tokens.length + rows);
    for (let row = 0; row < rows; row++) {
      const [prompt, reply] = [...tokens.subarray(offsets[row], offsets[row + 1])];
      expect(asked[0]!.tokens.slice(3 * row, 3 * row + 3)).toEqual([prompt, prompt, reply]);
      const t = offsets[row]! + 1;
      expect(mask[t]).toBe(1);
      const teacher = Math.log(reply === prompt ? 0.9 : 0.025);
      expect(advantages.values[t]).toBeCloseTo(teacher - rolloutLogprobs![t]!, 5);
    }
  });

  test("needs the fields that it names", async () => {
    const { run } = distilled({}, {}, { ...prompted, distillation: { teacher_prompt: "{solution} {prompt}" } });
    await expect(train(run)).rejects.toThrow(
      /Cannot fill distillation.teacher_prompt: the task copy-0 has no text or number solution .*Its row has prompt, answer/,
    );
  });
});

describe("what cannot distil is refused", () => {
  const tokenizer = letterTokenizer("abdc");
  const two = letterTokenizer("abcde");
  test.each<[string, Partial<TrainOptions>, Loss, Partly<LoopSettings>, RegExp]>([
    [
      "a run without a teacher",
      { teacher: undefined },
      {},
      {},
      /Cannot distil without a teacher: there is none.*teacher_kind=self/,
    ],
    [
      "a teacher with another tokenizer",
      { teacher: letterTeacher({ tokenizer }).teacher },
      {},
      {},
      /Cannot distil from the copier: its tokenizer is not the student's: token 3 is "d" there and "c".*vocabularies of 5 and 5/,
    ],
    [
      "a comparison of texts with a teacher whose tokenizer is not known",
      {},
      {},
      { distillation: { shared_tokenizer: false } },
      /Cannot distil from the copier by text: the teacher's tokenizer is not known/,
    ],
    [
      "a comparison of texts over the likeliest tokens",
      { teacher: letterTeacher({ tokenizer }).teacher },
      { loss_mode: "forward_kl_topk", use_policy_gradient: false },
      { distillation: { shared_tokenizer: false } },
      /by text: the teacher's likeliest tokens are of another vocabulary/,
    ],
    [
      "a teacher without top tokens",
      {},
      { loss_mode: "forward_kl_topk", use_policy_gradient: false },
      {},
      /the copier does not report its likeliest tokens/,
    ],
    [
      "a row beyond the teacher's context",
      { teacher: letterTeacher({ contextLength: 1 }).teacher },
      {},
      {},
      /trajectory copy-\d.* is longer than its context of 1 \(2 tokens\)/,
    ],
    [
      "a log-prob that is not a number",
      {
        teacher: letterTeacher({ logprobs: async ({ tokens }) => new Float32Array(tokens.length).fill(Number.NaN) })
          .teacher,
      },
      {},
      {},
      /log-prob of token 1 of the trajectory .* is not a finite number \(NaN\)/,
    ],
    [
      "one that is not a number, in the last row",
      {
        teacher: letterTeacher({
          logprobs: async ({ tokens }) => new Float32Array(tokens.length).fill(-1).fill(Number.NaN, tokens.length - 1),
        }).teacher,
      },
      {},
      {},
      /log-prob of token 1 of the trajectory copy-\d+\W7\W\S* is not a finite number/,
    ],
  ])("%s", async (_, options, loss, more, message) => {
    const { run, backend } = distilled(loss, options, more);
    await expect(train(run)).rejects.toThrow(message);
    expect(backend.weightVersion).toBe(0);
  });

  test("a larger vocabulary with the same tokens is not", async () => {
    const { run } = distilled(
      {},
      { teacher: letterTeacher({ tokenizer: two }).teacher },
      { trainer: { total_batches: 1 } },
    );
    await expect(train(run)).resolves.toMatchObject({ isComplete: true });
  });
});

test("a student that is its own teacher scores with the weights before training, or those now", async () => {
  for (const teacher_weights of ["initial", "current"] as const) {
    const { run, backend } = distilled(
      {},
      { teacher: undefined },
      { distillation: { teacher_kind: "self", teacher_weights }, trainer: { total_batches: 2 } },
    );
    const policies: string[] = [];
    const logprobs = backend.logprobs.bind(backend);
    Object.assign(backend, {
      logprobs: (rows: PackedTokens, of: { policy: string }) => {
        policies.push(of.policy);
        return logprobs(rows);
      },
      freezeReference: () => policies.push("frozen"),
    });
    await train(run);
    expect(policies).toEqual(
      teacher_weights === "initial" ? ["frozen", "reference", "reference"] : ["current", "current"],
    );
  }
});
