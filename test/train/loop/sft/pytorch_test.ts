/** Supervised steps against those of PyTorch on the same rows (test/fixtures/sft/make.py). */
import { readFile } from "node:fs/promises";
import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../../../src/engine/compute/cpu.ts";
import { LocalBackend } from "../../../../src/train/backend/local/backend.ts";
import { sft } from "../../../../src/train/loop/sft/sft.ts";
import { MemoryLogger } from "../../../fixtures/loop.ts";
import { hasShared, sharedPath } from "../../../fixtures/shared.ts";

interface Figures {
  readonly settings: { lr: number; betas: [number, number]; eps: number; weight_decay: number; clip_grad: number };
  readonly rows_per_step: number;
  readonly rows: readonly { ids: number[]; mask: number[] }[];
  readonly losses: readonly number[];
  readonly grad_norms: readonly number[];
}

describe.skipIf(!hasShared)("ten steps on stories260k", () => {
  test("have the losses and gradient norms of PyTorch's AdamW", { timeout: 60_000 }, async () => {
    const figures = JSON.parse(await readFile("test/fixtures/sft/losses.json", "utf8")) as Figures;
    const { lr, betas, eps, weight_decay, clip_grad } = figures.settings;
    const backend = await LocalBackend.open(sharedPath("models/stories260k"), { device: new CpuDevice() });
    const log = new MemoryLogger();
    const rows = figures.rows.map((row, i) => ({ ...row, file: "losses.json", line: i + 1 }));
    await sft({
      ...{ backend, rows: { train: rows }, loggers: [log], isShuffled: false },
      settings: {
        data: { train_batch_size: figures.rows_per_step },
        trainer: { total_batches: figures.losses.length },
        training: {
          ...{ learning_rate: lr, beta1: betas[0], beta2: betas[1], eps, weight_decay },
          grad_clip_norm: clip_grad,
        },
      },
    });
    backend.close();
    const steps = log.of("train").map(({ metrics }) => metrics);
    const worst = (name: string, expected: readonly number[]) =>
      Math.max(...steps.map((metrics, i) => Math.abs(metrics[name]! - expected[i]!) / Math.max(expected[i]!, 1)));
    expect(steps).toHaveLength(10);
    expect(worst("train/loss", figures.losses)).toBeLessThan(1e-5);
    expect(worst("train/grad_norm", figures.grad_norms)).toBeLessThan(1e-4);
  });
});
