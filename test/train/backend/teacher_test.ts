/** Teachers with weights, and the student's gradient over their likeliest tokens. */
import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import type { LossSpec, TopTokens, TrainBatch } from "../../../src/engine/contract/backend.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import { LocalBackend } from "../../../src/train/backend/local/backend.ts";
import { LocalTeacher } from "../../../src/train/backend/local/teacher.ts";
import { TinkerTeacher } from "../../../src/train/backend/tinker/teacher.ts";
import { overDevices } from "../../fixtures/devices.ts";
import { hasShared } from "../../fixtures/shared.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";
import { STORY_MODEL, startTinkerServer, TINKER_KEY } from "../../fixtures/tinker_server.ts";

/** Rows of 4, 3 and 5 tokens; what is trained on is after a prompt of one. */
const ROWS = {
  tokens: Uint32Array.of(3, 7, 9, 2, 4, 8, 2, 5, 6, 11, 13, 2),
  offsets: Uint32Array.of(0, 4, 7, 12),
  mask: Uint32Array.of(0, 1, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1),
};
const SPEC: LossSpec = {
  name: "cross_entropy",
  loss_agg_mode: "seq-mean-token-mean",
  settings: {},
  entropy_coeff: 0,
  temperature: 1.3,
};

const batchOf = (teacherTop?: TopTokens): TrainBatch => ({
  ...ROWS,
  advantages: { level: "row", values: new Float32Array(3).fill(1) },
  ...(teacherTop && { teacherTop }),
});

/** The rows' own tokens as the teacher's only choice, or with a second one of the same probability. */
function choices(...others: number[]): TopTokens {
  const k = 1 + others.length;
  const tokens = [...ROWS.tokens].flatMap((token) => [token, ...others]);
  return { k, tokens: Uint32Array.from(tokens), logprobs: new Float32Array(tokens.length).fill(-Math.log(k)) };
}

overDevices("the student's gradient over the teacher's top tokens", (device) => {
  /** Weights after one step of gradient descent without momentum, all of them. */
  async function stepped(take: (backend: LocalBackend) => Promise<unknown>, maxTokensPerPass?: number) {
    const model = LanguageModel.create(device, SMALL_MODEL, { seed: 1, maxTokensPerPass });
    const backend = new LocalBackend({ model });
    const metrics = await take(backend);
    const { "actor/grad_norm": norm } = await backend.optimStep({
      learning_rate: 0,
      beta1: 0.9,
      beta2: 0.95,
      eps: 1e-8,
      weight_decay: 0,
      grad_clip_norm: 0,
    });
    const means = await model.optimizer.means.read();
    model.release();
    return {
      metrics: metrics as Record<string, number>,
      norm: norm!,
      gradient: [...means.values()].flatMap((values) => [...values]),
    };
  }
  const forward = { ...SPEC, name: "forward_kl_topk" };
  const closest = (a: readonly number[], b: readonly number[]) =>
    Math.max(...a.map((value, i) => Math.abs(value - b[i]!)));

  test("one certain token is a cross-entropy", async () => {
    const expected = await stepped((backend) => backend.forwardBackward(batchOf(), SPEC));
    const found = await stepped((backend) => backend.forwardBackward(batchOf(choices()), forward));
    expect(found.norm).toBeCloseTo(expected.norm, 4);
    expect(found.metrics["distillation/loss"]).toBeCloseTo(expected.metrics["actor/loss"]!, 4);
    expect(closest(found.gradient, expected.gradient)).toBeLessThan(1e-6);
  });

  test("two equal tokens are the mean of two cross-entropies; passes of one sequence change nothing, a coefficient scales", async () => {
    const other = { ...batchOf(), ...choices(), teacherTop: { ...choices(), tokens: new Uint32Array(12).fill(1) } };
    const [one, two] = [
      await stepped((b) => b.forwardBackward(batchOf(choices()), forward)),
      await stepped((b) => b.forwardBackward({ ...batchOf(), teacherTop: other.teacherTop }, forward)),
    ];
    const expected = one.gradient.map((value, i) => (value + two.gradient[i]!) / 2);
    const both = await stepped((b) => b.forwardBackward(batchOf(choices(1)), forward));
    expect(closest(both.gradient, expected)).toBeLessThan(1e-6);
    const inParts = await stepped(
      (b) => b.forwardBackward(batchOf(choices(1)), { ...forward, settings: { coef: 2 } }),
      4,
    );
    expect(
      closest(
        inParts.gradient,
        expected.map((value) => 2 * value),
      ),
    ).toBeLessThan(2e-6);
    expect(inParts.metrics["distillation/loss"]).toBeCloseTo(2 * both.metrics["distillation/loss"]!, 4);
  });

  test("a student that is its teacher has no loss and no gradient over the whole vocabulary", async () => {
    for (const name of ["forward_kl_topk", "reverse_kl_topk_tail"]) {
      const found = await stepped(async (backend) => {
        const top = await backend.topLogprobs(ROWS, { policy: "current", temperature: 1.3, mask: ROWS.mask, k: 99 });
        expect(top.k).toBe(SMALL_MODEL.vocabSize);
        return backend.forwardBackward(batchOf(top), { ...SPEC, name });
      });
      expect(found.metrics["distillation/loss"]).toBeCloseTo(0, 4);
      expect(found.metrics["distillation/teacher_mass"]).toBeCloseTo(1, 4);
      expect(found.norm).toBeLessThan(1e-3);
    }
  });
});

describe.skipIf(!hasShared)("teachers on stories260k", () => {
  const rows = {
    tokens: Uint32Array.of(1, 403, 407, 261, 378, 1, 346, 450),
    offsets: Uint32Array.of(0, 5, 8),
    mask: Uint32Array.of(0, 1, 1, 1, 1, 0, 1, 1),
  };

  test("a folder's log-probs and likeliest tokens are those of its backend", async () => {
    const backend = await LocalBackend.open(STORY_MODEL, { device: new CpuDevice() });
    const device = new CpuDevice();
    const teacher = await LocalTeacher.open(STORY_MODEL, { device });
    const expected = await backend.logprobs(rows, { policy: "current", temperature: 0.8, mask: rows.mask });
    const found = await teacher.logprobs(rows, { temperature: 0.8, mask: rows.mask });
    expect([...found]).toEqual([...expected.logprobs]);
    const top = await teacher.top(rows, { temperature: 0.8, mask: rows.mask, k: 3 });
    for (const [t, bit] of rows.mask.entries()) {
      const own = [...top.logprobs.subarray(3 * t, 3 * t + 3)];
      expect(own).toEqual(bit ? [...own].sort((a, b) => b - a) : [0, 0, 0]);
      const at = [...top.tokens.subarray(3 * t, 3 * t + 3)].indexOf(rows.tokens[t]!);
      if (bit && at >= 0) expect(own[at]).toBeCloseTo(found[t]!, 4);
    }
    teacher.close();
    backend.close();
  });

  test("a service of Tinker's protocol has the same log-probs, at temperature 1 alone", async () => {
    const server = await startTinkerServer(await mkdtemp(join(tmpdir(), "teacher-")));
    const teacher = await TinkerTeacher.open({
      baseUrl: server.url,
      apiKey: TINKER_KEY,
      sdkVersion: "0.25.0",
      model: STORY_MODEL,
    });
    const device = new CpuDevice();
    const local = await LocalTeacher.open(STORY_MODEL, { device });
    const found = await teacher.logprobs(rows, { temperature: 1, mask: rows.mask });
    const expected = await local.logprobs(rows, { temperature: 1, mask: rows.mask });
    for (const [t, bit] of rows.mask.entries()) if (bit) expect(found[t]).toBeCloseTo(expected[t]!, 4);
    await expect(teacher.logprobs(rows, { temperature: 0.5, mask: rows.mask })).rejects.toThrow(/at temperature 0.5/);
    teacher.close();
    await expect(
      TinkerTeacher.open({ baseUrl: server.url, apiKey: TINKER_KEY, sdkVersion: "0.25.0", model: "nobody" }),
    ).rejects.toThrow(/nobody/);
    await server.stop();
  });
});
