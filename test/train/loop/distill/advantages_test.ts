/** The teacher's advantages, added to those of the rewards. */
import { expect, test } from "vitest";
import type { ProcessedRows, StageContext } from "../../../../src/train/loop/contract.ts";
import { withTeacher } from "../../../../src/train/loop/distill/advantages.ts";
import { loopSettings } from "../../../../src/train/loop/settings.ts";

const ROWS = {
  offsets: Uint32Array.of(0, 3, 5),
  tokens: Uint32Array.of(1, 2, 3, 4, 5),
  mask: Uint32Array.of(0, 1, 1, 0, 1),
  rolloutLogprobs: Float32Array.of(0, -1, -2, -7, -4),
} as unknown as ProcessedRows;
const ESTIMATED = { level: "row", values: Float32Array.of(10, -10) } as const;

function taught(teacherLogprobs: Float32Array | undefined) {
  const distillation_loss = { loss_mode: "k1", use_policy_gradient: true } as const;
  const settings = loopSettings({ distillation: { enabled: true, distillation_loss } });
  const rows = { ...ROWS, ...(teacherLogprobs && { teacherLogprobs }) };
  return withTeacher(rows, { value: ESTIMATED, metrics: { kept: 1 } }, { settings } as StageContext);
}

test("are added per token where a token is trained on, and told over those tokens alone", () => {
  const { value, metrics } = taught(Float32Array.of(0, -0.5, -4, 3, -1));
  const { level, values } = value.advantages;
  expect(level).toBe("token");
  const gains = [0.5, -2, 3];
  expect([...values]).toEqual([0, 10 + gains[0]!, 10 + gains[1]!, 0, -10 + gains[2]!]);
  expect(metrics).toMatchObject({
    kept: 1,
    "advantage/teacher/mean": expect.closeTo(0.5, 6),
    "advantage/teacher/max": 3,
    "advantage/teacher/min": -2,
  });
});

test("without a teacher's log-probs the estimated ones stay", () => {
  const { value, metrics } = taught(undefined);
  expect(value.advantages).toBe(ESTIMATED);
  expect(metrics).toEqual({ kept: 1 });
});
