/** A plan counts a teacher on the student's device: what it holds, its passes, the loss over its likeliest tokens. */
import { join } from "node:path";
import { expect, test } from "vitest";
import { planRun } from "../../src/backend/local/plan/plan.ts";
import { DEFAULT_SHAPE, type RunShape } from "../../src/backend/local/plan/run_shape.ts";
import { LocalTeacher } from "../../src/backend/local/teacher.ts";
import { CpuDevice } from "../../src/compute/cpu.ts";
import { LanguageModel } from "../../src/model/language_model.ts";
import { saveModelFolder } from "../../src/model/save_model.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { SMALL_MODEL } from "../fixtures/small_model.ts";

const root = temporaryFolder("teacher-plan");
const STUDENT = { ...SMALL_MODEL, layers: 1 };
const TEACHER = { ...SMALL_MODEL, layers: 6, hiddenSize: 64, intermediateSize: 256 };
const SHAPE: RunShape = { ...DEFAULT_SHAPE, prompts: 4, groupSize: 4, promptTokens: 8, replyTokens: 16 };

async function planned(more: Partial<RunShape> = {}, teacher: typeof TEACHER | null = TEACHER) {
  const shapeOf = (config: typeof TEACHER) => ({ config, typeOf: () => undefined });
  const { phases } = await planRun({
    model: shapeOf(STUDENT),
    options: {},
    shape: { ...SHAPE, ...more },
    info: new CpuDevice().info,
    budget: 2 ** 30,
    teacher: teacher ? shapeOf(teacher) : undefined,
  });
  return Object.fromEntries(phases.map((phase) => [phase.name, phase]));
}

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
  const activations = async (teacher: typeof TEACHER) => (await planned({}, teacher)).scoring!.parts.activations!;
  expect(await activations(TEACHER)).toBeGreaterThan(2 * (await activations(small)));
});

test("training holds the loss over the teacher's likeliest tokens", async () => {
  const loss = { ...SHAPE.loss, name: "forward_kl_topk" };
  const peak = async (more: Partial<RunShape>) => (await planned(more)).training!.peakBytes;
  expect(await peak({ topk: { loss, k: 16, isAlone: false } })).toBeGreaterThan(await peak({}));
});
