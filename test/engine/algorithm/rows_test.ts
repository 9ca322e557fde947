/** The kernel of rows in figures, at every token: the golden figures compare trained ones alone. */
import { expect, test } from "vitest";
import { advantageRows, ROWS_MODE } from "../../../src/engine/algorithm/advantage/kernels.ts";
import type { Device } from "../../../src/engine/compute/device.ts";
import { overDevices } from "../../fixtures/devices.ts";

// Rows of 3, 0 and 3 tokens; the last token of the first and the middle one of the last are not trained on.
const OFFSETS = Uint32Array.of(0, 3, 3, 6);
const MASK = Uint32Array.of(1, 1, 0, 1, 0, 1);
const UNWRITTEN = 99;

overDevices("the kernel of rows", (device: Device) => {
  const run = async (mode: number, BASELINE = 0) => {
    const outputs = ["advantages", "returns"].map((name) => device.upload(new Float32Array(8).fill(UNWRITTEN), name));
    const [advantages, returns] = outputs as [(typeof outputs)[0], (typeof outputs)[0]];
    const inputs = {
      rewards: device.upload(Float32Array.of(4, 9, -2, 0), "rewards"),
      mask: device.upload(Uint32Array.of(...MASK, 1, 1), "mask"),
      offsets: device.upload(OFFSETS, "offsets"),
      values: device.upload(Float32Array.of(1, 2, 3, 4, 5, 6, 7, 8), "values"),
    };
    device.dispatch(advantageRows, {
      buffers: { ...inputs, advantages, returns },
      params: { rows: 3, gamma: 0.5, lam: 1 },
      constants: { MODE: mode, TOKEN_REWARDS: 0, BASELINE },
    });
    const read = await device.read(outputs.map((buffer) => ({ buffer, type: "f32" })));
    device.release(...outputs, ...Object.values(inputs));
    const [found, sums] = read.map((data) => [...data]);
    return {
      advantages: found!.slice(0, 6),
      returns: sums!.slice(0, 6),
      behind: [...found!.slice(6), ...sums!.slice(6)],
    };
  };

  const discounted = [2, 4, 0, -1, 0, -2];
  const toGo = [4, 4, 0, -2, -2, -2];
  test.each([
    // A value is what its token's return is compared with: advantage = return - value.
    ["gae", { returns: discounted, advantages: [1, 2, 0, -5, 0, -8] }, 0],
    ["discounted", { returns: discounted, advantages: discounted }, 0],
    ["reset", { returns: [2, 4, 0, 0, -1, -2], advantages: [2, 4, 0, 0, -1, -2] }, 0],
    ["toGo", { returns: toGo, advantages: toGo }, 0],
    ["toGo", { returns: toGo, advantages: [3, 3, 0, -5, -2, -5] }, 1],
  ] as const)("%s writes %o with a baseline of %i", async (mode, wanted, baseline) => {
    const behind = Array(4).fill(UNWRITTEN);
    expect(await run(ROWS_MODE[mode], baseline)).toEqual({ ...wanted, behind });
  });
});
