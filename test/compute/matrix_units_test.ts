/** Which adapters have the matrix units that products use, and the check that they multiply as they should. */
import { describe, expect, test, vi } from "vitest";
import { CpuDevice } from "../../src/compute/cpu.ts";
import { checkMatrices, MOST_DIFFERENCE } from "../../src/compute/matmul/matrix_check.ts";
import { chooseTiles } from "../../src/compute/matmul/tiles.ts";
import { openDevice } from "../../src/compute/open.ts";
import { requestDevice } from "../../src/compute/webgpu/connection.ts";
import { describeAdapter } from "../../src/compute/webgpu/info.ts";
import { matrixSupport, SUBGROUP_MATRIX } from "../../src/compute/webgpu/matrix_units.ts";
import type { GpuAdapter } from "../../src/compute/webgpu/types.ts";
import { ConfigError, UnsupportedError } from "../../src/errors.ts";
import { gpuDevice } from "../fixtures/devices.ts";
import { matrixDevice } from "../fixtures/emulated_matrices.ts";

const config = (componentType: string, resultComponentType: string, size: number) => ({
  ...{ componentType, resultComponentType, M: size, N: size, K: size },
});
const HALF = config("f16", "f16", 16);
const FITTING = config("f16", "f32", 16);
/** Those of Metal. */
const METAL = [config("f32", "f32", 8), config("f16", "f16", 8)];
const ALL = [SUBGROUP_MATRIX, "shader-f16", "subgroups"];

function adapter({
  features = ALL,
  lanes = [32, 32],
  configs = [HALF, FITTING] as unknown,
  bytes = 16_384,
}): GpuAdapter {
  return {
    info: {
      ...{ vendor: "nvidia", architecture: "hopper", device: "h200", description: "NVIDIA H200" },
      ...{ subgroupMinSize: lanes[0], subgroupMaxSize: lanes[1], subgroupMatrixConfigs: configs },
    },
    features: new Set(features),
    limits: { maxStorageBuffersPerShaderStage: 8, maxComputeWorkgroupStorageSize: bytes },
    requestDevice: async (wanted: unknown) => wanted,
  } as unknown as GpuAdapter;
}

test("an adapter with the features, 32 lanes and 16 x 16 x 16 in f16 with f32 sums lacks nothing", async () => {
  const has = adapter({});
  expect(matrixSupport(has)).toEqual({ inputs: "f16", missing: undefined });
  expect(describeAdapter(has).subgroupMatrix).toEqual({ isUsed: false, inputs: "f16", missing: undefined });
  const wanted = (subgroupMatrix: boolean) => requestDevice(has, { subgroupMatrix });
  expect(await wanted(true)).toMatchObject({ requiredFeatures: ["subgroups", "shader-f16", SUBGROUP_MATRIX] });
  // Experimental features are requested where they are used alone.
  expect(await wanted(false)).toMatchObject({ requiredFeatures: ["subgroups", "shader-f16"] });
});

test.each([
  [
    { features: ["shader-f16", "subgroups"] },
    /^no feature chromium-experimental-subgroup-matrix \(.*allow_unsafe_apis\)$/,
  ],
  [{ features: [SUBGROUP_MATRIX, "subgroups"] }, /^no feature shader-f16 \(.*vulkan_enable_f16_on_nvidia\)$/],
  [{ features: [] }, /^no feature chromium.*; no feature shader-f16 .*; no feature subgroups/],
  [{ lanes: [8, 8] }, /^subgroups of 8 lanes in place of 32$/],
  [{ lanes: [32, 64] }, /^subgroups of 32 to 64 lanes in place of 32$/],
  [{ configs: [] }, /^neither units of 16 x 16 x 16 in f16 with sums in f32 nor of 8 x 8 x 8 in f32 \(it has: none\)$/],
  [{ configs: null }, /\(it has: none\)$/],
  [{ configs: [config("f16", "f16", 8), HALF] }, /\(it has: 8 x 8 x 8 f16 to f16, 16 x 16 x 16 f16 to f16\)$/],
  [{ bytes: 16_380 }, /^16380 bytes of workgroup memory, and 16384 are needed$/],
  [{ configs: METAL }, /^16384 bytes of workgroup memory, and 24576 are needed$/],
  [{ configs: [HALF, { ...FITTING, M: 8 }, { ...FITTING, N: 8 }, { ...FITTING, K: 8 }] }, /^neither units of 16/],
])("what an adapter lacks: %o", (less, missing) => {
  const lacking = adapter(less);
  expect(describeAdapter(lacking).subgroupMatrix).toMatchObject({
    isUsed: false,
    missing: expect.stringMatching(missing),
  });
  expect(() => requestDevice(lacking, { subgroupMatrix: true })).toThrow(
    /^Cannot multiply by subgroup matrices on NVIDIA H200: .*\. Set device.toggles=\[allow_unsafe_apis,vulkan_enable_f16_on_nvidia\] where the GPU has them, or leave device.products at auto\.$/,
  );
  expect(() => requestDevice(lacking)).not.toThrow();
});

test("devices without them refuse the setting", async () => {
  await expect(openDevice({ device: "cpu", products: "subgroup_matrix" })).rejects.toThrow(ConfigError);
  await expect(chooseTiles(new CpuDevice(), "subgroup_matrix")).rejects.toThrow(/they are for GPUs/);
});

test.skipIf(gpuDevice?.info.subgroupMatrix?.missing === undefined)("so does an adapter without them", async () => {
  await expect(openDevice({ products: "subgroup_matrix" })).rejects.toThrow(UnsupportedError);
});

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
