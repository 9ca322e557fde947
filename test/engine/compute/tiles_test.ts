/** Which tiles a GPU multiplies by: as set, or as measured once per adapter and driver. */
import { describe, expect, test, vi } from "vitest";
import { CountingDevice, TYPICAL_GPU } from "../../../src/engine/compute/counting.ts";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { chooseTiles, jsonStore, measureTiles, type TileRates } from "../../../src/engine/compute/matmul/tiles.ts";
import { openDevice } from "../../../src/engine/compute/open.ts";
import { ConfigError } from "../../../src/leaves/errors.ts";
import { gpuDevice } from "../../fixtures/devices.ts";

const LARGE_WINS: TileRates = { tiled: 1e12, tiled_large: 2e12 };
const SMALL_WINS: TileRates = { tiled: 3e12, tiled_large: 2e12 };

/** A file system of one file, and a store in it. */
function storeIn(files: Map<string, string>) {
  return jsonStore("rates.json", {
    read: (path) => files.get(path)!,
    write: (path, text) => files.set(path, text),
  });
}

const gpu = (description = "driver 1") => new CountingDevice({ info: { ...TYPICAL_GPU, description } });

test("the faster tiles are taken, and kept by adapter and driver for later processes", async () => {
  const files = new Map<string, string>();
  const measure = vi.fn(async () => SMALL_WINS);
  const choose = (description?: string) => chooseTiles(gpu(description), "auto", { measure, store: storeIn(files) });
  const first = await choose();
  expect(first).toEqual({ tile: "tiled", tileSource: "measured: tiled_large 2000 GFLOP/s, tiled 3000 GFLOP/s" });
  expect(await choose()).toEqual(first);
  expect(measure).toHaveBeenCalledTimes(1);
  measure.mockResolvedValue(LARGE_WINS);
  expect(await choose("driver 2")).toMatchObject({ tile: "tiled_large" });
  expect(await choose()).toEqual(first);
  expect(measure).toHaveBeenCalledTimes(2);
});

test.each(["", "not json", "null", '{"||driver 1": {"tiled": 1}}', '{"||driver 1": null}'])(
  "a damaged file is measured again: %s",
  async (text) => {
    const files = new Map([["rates.json", text]]);
    const measure = vi.fn(async () => LARGE_WINS);
    const store = storeIn(files);
    expect(await chooseTiles(gpu(), "auto", { measure, store })).toMatchObject({ tile: "tiled_large" });
    expect(await chooseTiles(gpu(), "auto", { measure, store })).toMatchObject({ tile: "tiled_large" });
    expect(measure).toHaveBeenCalledTimes(1);
  },
);

test("a file that cannot be written costs a measurement each time", async () => {
  const files = { read: () => "{}", write: () => void expect.fail("read-only") };
  const measure = vi.fn(async () => LARGE_WINS);
  for (let i = 0; i < 2; i++) await chooseTiles(gpu(), "auto", { measure, store: jsonStore("rates.json", files) });
  expect(measure).toHaveBeenCalledTimes(2);
});

test("tiles that are set, or that memory does not allow to measure, are not measured", async () => {
  const measure = vi.fn(async () => SMALL_WINS);
  const set = await chooseTiles(gpu(), "tiled_large", { measure, store: undefined });
  expect(set).toEqual({ tile: "tiled_large", tileSource: "set by device.products" });
  const small = new CountingDevice({ memoryBudgetBytes: 2 ** 20 });
  expect(await chooseTiles(small, "auto", { measure, store: undefined })).toMatchObject({ tile: "tiled_large" });
  expect(measure).not.toHaveBeenCalled();
});

test("devices that are no GPU have no choice", async () => {
  const cpu = new CpuDevice();
  expect(await chooseTiles(cpu)).toEqual({});
  await expect(chooseTiles(cpu, "tiled")).rejects.toThrow(ConfigError);
  await expect(openDevice({ device: "cpu", products: "tiled" })).rejects.toThrow(
    /Cannot multiply by the kernels tiled: they are for GPUs, and the device is .*Leave device.products at auto/,
  );
});

describe.skipIf(!gpuDevice)("a measurement", () => {
  test("times both kernels and releases its memory", async () => {
    const before = gpuDevice!.memory.live;
    const rates = await measureTiles(gpuDevice!, 64);
    expect(rates.tiled).toBeGreaterThan(1e5);
    expect(rates.tiled_large).toBeGreaterThan(1e5);
    expect(gpuDevice!.memory.live).toBe(before);
  });
});
