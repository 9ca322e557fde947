/** Distillation without rewards brings a student of half the parameters close to its teacher (a software GPU will do). */
import { expect, test } from "vitest";
import { gpuDevice } from "../fixtures/devices.ts";
import { temporaryFolder } from "../fixtures/folder.ts";
import { trainExample } from "../fixtures/trained_example.ts";

const dir = temporaryFolder("distill-learning");
const MINUTES = 60_000;
const PASS = "val/arithmetic/pass@1";

test.skipIf(!gpuDevice)(
  "a student reaches nine tenths of its teacher's accuracy on arithmetic",
  { timeout: 10 * MINUTES },
  async () => {
    const taught = await trainExample("arithmetic", { dir, overrides: ["rllm.trainer.total_batches=20"] });
    const overrides = [
      `distillation.teacher_models.teacher_model.model_path=${taught.folder}`,
      "rllm.trainer.save_freq=-1",
    ];
    const student = await trainExample("distill", { dir, overrides });
    const [teacher, scores] = [taught.val(PASS).at(-1)!, student.val(PASS)];
    expect(teacher).toBeGreaterThan(0.7);
    expect(scores[0]).toBeLessThan(0.6 * teacher);
    expect(scores.at(-1)).toBeGreaterThanOrEqual(0.9 * teacher);
    const divergence = student.train("teacher_kl");
    expect(divergence.at(-1)).toBeLessThan(0.5 * divergence[0]!);
  },
);
