/** Losses over the teacher's top tokens against PyTorch's (test/fixtures/distill/make.py), and the kernel against its reference. */
import { readFile } from "node:fs/promises";
import { describe, expect, test } from "vitest";
import {
  TAIL_EPSILON,
  TOPK_MODES,
  type TopkSettings,
  topkPlace,
  topkPlan,
} from "../../../../src/engine/algorithm/distill/topk.ts";
import { recordTopk, topkDistillation } from "../../../../src/engine/algorithm/distill/topk_kernel.ts";
import type { Device } from "../../../../src/engine/compute/device.ts";
import { DISTILLATION_FIELDS } from "../../../../src/train/config/fields/distillation.ts";
import { overDevices } from "../../../fixtures/devices.ts";
import { expectContract } from "../../../fixtures/kernel_contract.ts";

interface Figures {
  readonly student: readonly number[][];
  readonly teacher: readonly number[][];
  readonly cases: readonly { mode: string; settings: TopkSettings; values: number[]; slopes: number[][] }[];
}

const figures = JSON.parse(await readFile("test/fixtures/distill/topk.json", "utf8")) as Figures;
const UNBOUND: TopkSettings = { log_prob_min_clamp: null, loss_max_clamp: null };

describe("losses over the teacher's top tokens", () => {
  test.each(figures.cases)(
    "$mode with $settings is PyTorch's, with its gradient",
    ({ mode, settings, ...expected }) => {
      const plan = topkPlan(mode, settings);
      for (const [row, student] of figures.student.entries()) {
        const slopes = new Float64Array(student.length);
        const { value, mass } = topkPlace(student, figures.teacher[row]!, { plan, slopes });
        expect(value).toBeCloseTo(expected.values[row]!, 10);
        expect(mass).toBeCloseTo(
          student.reduce((sum, logprob) => sum + Math.exp(logprob), 0),
          12,
        );
        for (const [k, slope] of slopes.entries()) expect(slope).toBeCloseTo(expected.slopes[row]![k]!, 10);
      }
    },
  );

  test("the figures hold a clamped loss, a clamped log-prob and a loss below 0 of each direction", () => {
    const zeros = figures.cases.filter(({ slopes }) => slopes.some((row) => row.every((slope) => slope === 0)));
    expect(new Set(zeros.map(({ mode }) => mode))).toEqual(new Set(TOPK_MODES));
  });

  test("equal distributions over a whole vocabulary have a loss of 0, and no slope in the logits", () => {
    const logprobs = [0.1, 0.2, 0.3, 0.4].map(Math.log);
    for (const mode of TOPK_MODES) {
      const slopes = new Float64Array(4);
      const { value } = topkPlace(logprobs, logprobs, { plan: topkPlan(mode, UNBOUND), slopes });
      expect(value).toBeCloseTo(0, 5);
      const total = slopes.reduce((sum, slope) => sum + slope);
      const inLogits = slopes.map((slope, k) => slope - Math.exp(logprobs[k]!) * total);
      for (const slope of inLogits) expect(slope).toBeCloseTo(0, 5);
    }
  });

  test("a mode that is not published is refused with those that are", () => {
    expect(() => topkPlan("jsd_topk", UNBOUND)).toThrow(
      /no loss_mode "jsd_topk".*forward_kl_topk, forward_kl_topk_tail/,
    );
  });

  test("the settings offer the engine's modes", () => {
    const { choices } = DISTILLATION_FIELDS["distillation.distillation_loss.loss_mode"];
    expect(choices!.filter((mode) => mode.includes("topk"))).toEqual(TOPK_MODES);
  });
});

/** Log-probs of rows of k tokens that hold a part of the mass. */
function rowsOf(rows: number, k: number, seed: number): Float32Array {
  const values = new Float32Array(rows * k);
  for (let i = 0; i < values.length; i++) values[i] = -0.3 - Math.log(k) - ((i * 7919 + seed * 104_729) % 101) / 40;
  return values;
}

async function run(device: Device, { rows, k, mode }: { rows: number; k: number; mode: string }) {
  const [student, teacher] = [rowsOf(rows, k, 1), rowsOf(rows, k, 2)];
  const weights = Float32Array.from({ length: rows }, (_, row) => 1 / (1 + (row % 5)));
  const plan = topkPlan(mode, { log_prob_min_clamp: -3, loss_max_clamp: 1 });
  const uploaded = device.upload(student, "student");
  const recorded = recordTopk(device, plan, { student: uploaded, teacher, weights });
  const data = await device.read([...recorded.reads, { buffer: recorded.dlogprobs, type: "f32", length: rows * k }]);
  const { values, masses } = recorded.decode(data.slice(0, 2));
  recorded.release();
  device.release(uploaded);
  const expected = {
    values: new Float32Array(rows),
    masses: new Float32Array(rows),
    dlogprobs: new Float32Array(rows * k),
  };
  topkDistillation.reference({ student, teacher, weights, ...expected }, { rows, k, ...plan }, {});
  return { found: { values, masses, dlogprobs: data[2] as Float32Array }, expected };
}

test("the kernel's value describes its shader", () => expectContract(topkDistillation));

test("shader and reference bound the tail alike", async () => {
  expect(await readFile("shaders/distill/topk.wgsl", "utf8")).toContain(
    `TAIL_EPSILON = ${TAIL_EPSILON.toExponential()};`,
  );
});

overDevices("distill/topk", (device) => {
  test.each(
    TOPK_MODES.flatMap((mode) => [
      { rows: 1, k: 1, mode },
      { rows: 65, k: 3, mode },
    ]),
  )("$mode of $rows rows of $k", async (of) => {
    const { found, expected } = await run(device, of);
    const { relative, absolute } = topkDistillation.tolerance;
    for (const name of ["values", "masses", "dlogprobs"] as const)
      for (const [i, value] of found[name].entries())
        expect(Math.abs(value - expected[name][i]!)).toBeLessThanOrEqual(
          absolute + relative * Math.abs(expected[name][i]!),
        );
  });

  test("more than 65,535 workgroups", async () => {
    const rows = 65_537;
    const plan = topkPlan("forward_kl_topk", UNBOUND);
    const values = device.alloc(rows * 4, "values");
    const [student, teacher] = [device.upload(rowsOf(rows, 1, 1), "s"), device.upload(rowsOf(rows, 1, 2), "t")];
    const buffers = {
      student,
      teacher,
      weights: student,
      values,
      masses: device.alloc(rows * 4, "m"),
      dlogprobs: device.alloc(rows * 4, "d"),
    };
    device.dispatch(topkDistillation, { buffers, params: { rows, k: 1, ...plan }, constants: { WORKGROUP: 1 } });
    const [found] = (await device.read([{ buffer: values, type: "f32", length: rows }])) as [Float32Array];
    for (const row of [0, 1, 65_535, rows - 1]) {
      const at = (seed: number) => rowsOf(rows, 1, seed).subarray(row, row + 1);
      const { value } = topkPlace(at(1), at(2), { plan, slopes: new Float64Array(1) });
      expect(found[row]).toBeCloseTo(value, 5);
    }
    device.release(...Object.values(buffers).filter((buffer) => buffer !== student), student);
  });
});
