/** A plan counts a teacher on the student's device: what it holds, its passes, the loss over its likeliest tokens. */
import { join } from "node:path";
import { expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { LanguageModel } from "../../../src/engine/model/language_model.ts";
import type { ModelShape } from "../../../src/engine/model/model_shape.ts";
import { openModel } from "../../../src/engine/model/open_model.ts";
import { saveAdapterFolder, saveModelFolder } from "../../../src/engine/model/save_model.ts";
import { planRun } from "../../../src/train/backend/local/plan/plan.ts";
import { DEFAULT_SHAPE, type RunShape } from "../../../src/train/backend/local/plan/run_shape.ts";
import { LocalTeacher } from "../../../src/train/backend/local/teacher.ts";
import { wholeShape } from "../../../src/train/run/model/plan_request.ts";
import { temporaryFolder } from "../../fixtures/folder.ts";
import { SMALL_MODEL } from "../../fixtures/small_model.ts";

const root = temporaryFolder("teacher-plan");
const STUDENT = { ...SMALL_MODEL, layers: 1 };
const TEACHER = { ...SMALL_MODEL, layers: 6, hiddenSize: 64, intermediateSize: 256 };
const SHAPE: RunShape = { ...DEFAULT_SHAPE, prompts: 4, groupSize: 4, promptTokens: 8, replyTokens: 16 };

const shapeOf = (config: typeof TEACHER): ModelShape => ({ config, typeOf: () => undefined });

async function planned(more: Partial<RunShape> = {}, teacher: ModelShape | null = shapeOf(TEACHER)) {
  const { phases } = await planRun({
    model: shapeOf(STUDENT),
    options: {},
    shape: { ...SHAPE, ...more },
    info: new CpuDevice().info,
    budget: 2 ** 30,
    teacher: teacher ?? undefined,
  });
  return Object.fromEntries(phases.map((phase) => [phase.name, phase]));
}

/** Saves a teacher and an adapter on it, of `dtype` and without values. @returns the adapter's folder */
async function adapterTeacher(name: string, dtype: "F32" | "BF16"): Promise<string> {
  const model = LanguageModel.create(new CpuDevice(), TEACHER, { seed: 1, lora: { rank: 8 } });
  const [base, folder] = [join(root, `${name}-base`), join(root, name)];
  await saveModelFolder(base, { model, dtype });
  await saveAdapterFolder(folder, { model, base: (await openModel(base)).mark });
  return folder;
}

test.each(["F32", "BF16"] as const)(
  "an adapter of a teacher in %s counts as what an opened one holds",
  async (dtype) => {
    const device = new CpuDevice();
    const before = device.memory.live;
    const teacher = await LocalTeacher.open(await adapterTeacher(`adapter-${dtype}`, dtype), { device });
    const pair = { tokens: Uint32Array.of(1, 3), offsets: Uint32Array.of(0, 2) };
    await teacher.logprobs(pair, { temperature: 1, mask: Uint32Array.of(0, 1) });
    const held = device.memory.live - before;
    const shape = await wholeShape(join(root, `adapter-${dtype}`), "model.name");
    const { teacher_weights: weights = 0, adapter = 0 } = (await planned({}, shape)).training!.parts;
    expect((weights + adapter) / held).toBeCloseTo(1, 2);
    // Merged into weights in f32 as they are loaded; beside those in bfloat16.
    expect(adapter > 0).toBe(dtype === "BF16");
  },
);

test("its weights are held in every phase, as many bytes as an opened teacher holds", async () => {
  const device = new CpuDevice();
  const folder = join(root, "teacher");
  await saveModelFolder(folder, { model: LanguageModel.create(device, TEACHER, { seed: 1 }) });
  const before = device.memory.live;
  const teacher = await LocalTeacher.open(folder, { device });
  const pair = { tokens: Uint32Array.of(1, 3), offsets: Uint32Array.of(0, 2) };
  await teacher.logprobs(pair, { temperature: 1, mask: Uint32Array.of(0, 1) });
  const held = device.memory.live - before;
  const phases = await planned();
  for (const { parts } of Object.values(phases)) expect(parts.teacher_weights! / held).toBeCloseTo(1, 1);
  expect((await planned({}, null)).training!.parts.teacher_weights).toBeUndefined();
});

test("scoring holds a pass of the teacher where that is larger than the student's", async () => {
  const small = { ...TEACHER, hiddenSize: 16, intermediateSize: 24, layers: 1 };
  const activations = async (teacher: typeof TEACHER) =>
    (await planned({}, shapeOf(teacher))).scoring!.parts.activations!;
  expect(await activations(TEACHER)).toBeGreaterThan(2 * (await activations(small)));
});

test("training holds the loss over the teacher's likeliest tokens", async () => {
  const loss = { ...SHAPE.loss, name: "forward_kl_topk" };
  const peak = async (more: Partial<RunShape>) => (await planned(more)).training!.peakBytes;
  expect(await peak({ topk: { loss, k: 16, isAlone: false } })).toBeGreaterThan(await peak({}));
});
