/** The check that matrix units multiply as they should, on emulated ones, right and wrong. */
import { describe, expect, test, vi } from "vitest";
import { checkMatrices, MOST_DIFFERENCE } from "../../../src/engine/compute/matmul/matrix_check.ts";
import { chooseTiles } from "../../../src/engine/compute/matmul/tiles.ts";
import { UnsupportedError } from "../../../src/leaves/errors.ts";
import { gpuDevice } from "../../fixtures/devices.ts";
import { matrixDevice } from "../../fixtures/emulated_matrices.ts";

describe.skipIf(!gpuDevice?.info.features.includes("shader-f16"))("the check, on emulated matrix units", () => {
  const check = async (edit?: (units: string) => string) =>
    checkMatrices(await matrixDevice(gpuDevice!, edit ? { edit } : {}));

  test("finds what rounding to f16 leaves, and the setting is followed", async () => {
    const live = gpuDevice!.memory.live;
    const difference = await check();
    expect(difference).toBeGreaterThan(2e-5);
    expect(difference).toBeLessThan(MOST_DIFFERENCE.f16 / 2);
    expect(gpuDevice!.memory.live).toBe(live);
    const chosen = await chooseTiles(await matrixDevice(gpuDevice!), "subgroup_matrix");
    expect(chosen).toMatchObject({ tile: "tiled_large", subgroupMatrix: { isUsed: true, inputs: "f16" } });
    expect(chosen.tileSource).toMatch(
      /^set by device.products: .* in f16 on matrix units, 0\.000\d+ from the f32 kernels$/,
    );
  });

  test("finds less by units that multiply f32", async () => {
    const device = await matrixDevice(gpuDevice!, { inputs: "f32" });
    expect(await checkMatrices(device)).toBeLessThan(MOST_DIFFERENCE.f32 / 10);
    // The bound of f16 would let this pass.
    const edit = (units: string) => units.replace("let x = ", "let x = 1.00005 * ");
    const worse = await matrixDevice(gpuDevice!, { inputs: "f32", edit });
    await expect(checkMatrices(worse)).rejects.toThrow(/differs .* by 0\.0000\d+ of .* at most 0\.00001 is rounding/);
  });

  test.each([
    ["left.q1, right.q2, sums.q0", "left.q1, right.q3, sums.q0"],
    ["at + 136u", "at + 128u"],
    ["store_sums(at + 8u, sums.q1", "store_sums(at + 8u, sums.q2"],
  ])("refuses units of 8 x 8 x 8 with %s as %s", async (right, wrong) => {
    const edit = (units: string) => units.replace(right, wrong);
    expect(edit(right)).toBe(wrong);
    const device = await matrixDevice(gpuDevice!, { inputs: "f32", edit });
    await expect(checkMatrices(device)).rejects.toThrow(UnsupportedError);
  });

  const SUM = "all_sums[sum] = fma(x, y, all_sums[sum]);";
  const PLACE = "k * it.right.row + (own * EACH % SIDE + i) * it.right.column";
  test.each([
    ["sums in f16", SUM, SUM.replace("= fma", "= unpack2x16float(pack2x16float(vec2f(fma").replace(";", "))).x;")],
    ["blocks of B transposed", PLACE, PLACE.replace("row", "column").replace(/column$/, "row")],
    ["NaN", SUM, SUM.replace("x,", "bitcast<f32>(0x7fc00000u | own),")],
  ])("refuses units that give %s", async (_, right, wrong) => {
    const edit = vi.fn((units: string) => units.replace(right, wrong));
    await expect(check(edit)).rejects.toThrow(
      /^Cannot multiply by subgroup matrices on .*: a product of 140 x 148 x 100 differs from that in float32 by (NaN|Infinity|[\d.e+-]+) of its rows' and columns' norms, and at most 0.001 is rounding\. Update the driver, or leave device.products at auto\.$/,
    );
    for (const [index, { value }] of edit.mock.results.entries()) expect(value).not.toBe(edit.mock.calls[index]![0]);
    expect(edit).toHaveBeenCalledTimes(2);
  });
});
