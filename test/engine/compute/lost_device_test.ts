/** A GPU device that is lost, and opened again. */
import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { readFloats } from "../../../src/engine/compute/device.ts";
import { matmul } from "../../../src/engine/compute/matmul/matmul.ts";
import { connectAgain } from "../../../src/engine/compute/webgpu/connection.ts";
import { WebGpuDevice } from "../../../src/engine/compute/webgpu/device.ts";
import { DeviceLostError } from "../../../src/leaves/errors.ts";
import { gpuDevice } from "../../fixtures/devices.ts";

const open = async () => (await WebGpuDevice.open({ memoryBudgetBytes: 2 ** 20 }))!;

async function product(device: WebGpuDevice): Promise<number[]> {
  const [a, b] = [device.upload(Float32Array.of(1, 2, 3, 4), "a"), device.upload(Float32Array.of(5, 6, 7, 8), "b")];
  const c = device.alloc(16, "c");
  matmul(device, { m: 2, n: 2, k: 2, a: { buffer: a }, b: { buffer: b }, c: { buffer: c } });
  const values = [...(await readFloats(device, c))];
  device.release(a, b, c);
  return values;
}

describe.skipIf(!gpuDevice)("a lost GPU device", () => {
  test.each(["before the work", "while pipelines compile", "after the submit"])(
    "rejects the work: lost %s",
    async (when) => {
      const device = await open();
      if (when === "before the work") device.gpuDevice.destroy();
      const pending = product(device);
      if (when === "while pipelines compile") device.gpuDevice.destroy();
      if (when === "after the submit") setTimeout(() => device.gpuDevice.destroy());
      const [result] = await Promise.allSettled([pending]);
      // Work that was done before the loss is not an error.
      if (when !== "after the submit" || result.status === "rejected")
        expect(result).toMatchObject({ status: "rejected", reason: { name: "DeviceLostError" } });
      await expect(product(device)).rejects.toThrow(DeviceLostError);
      device.destroy();
    },
  );

  test("is opened again: memory, pipelines and work begin afresh, and lost buffers may be released", async () => {
    const device = await open();
    expect(await product(device)).toEqual([19, 22, 43, 50]);
    const lost = device.upload(Float32Array.of(1), "lost");
    const before = device.gpuDevice;
    device.clear(lost);
    expect(device.isLost).toBe(false);
    before.destroy();
    await expect(device.submit()).rejects.toThrow(DeviceLostError);
    expect(device.isLost).toBe(true);
    device.clear(lost);
    await device.reopen();
    expect(device.gpuDevice).not.toBe(before);
    expect(device.isLost).toBe(false);
    expect(device.memory).toMatchObject({ live: 0, pooled: 0 });
    expect(await product(device)).toEqual([19, 22, 43, 50]);
    const live = device.upload(Float32Array.of(2), "live");
    device.release(lost);
    expect([...(await readFloats(device, live))]).toEqual([2]);
    device.release(live);
    expect(() => device.release(live)).toThrow(/released before/);
    device.destroy();
  });

  test("a call of the old device that is still under way does not disturb the new one", async () => {
    const device = await open();
    const settled = Promise.allSettled([product(device)]);
    device.gpuDevice.destroy();
    await device.reopen();
    const [old] = await settled;
    expect(old).toMatchObject({ status: "rejected", reason: { name: "DeviceLostError" } });
    expect(await product(device)).toEqual([19, 22, 43, 50]);
    expect(device.memory.live).toBe(0);
    device.destroy();
  });

  test("that no adapter gives again is an error, after a few tries", async () => {
    let tries = 0;
    const none = async () => {
      tries++;
      if (tries === 2) throw new Error("the driver is being reset");
      return null;
    };
    await expect(connectAgain(none)).rejects.toThrow(
      /Cannot reopen the GPU device: no adapter answers \(the driver is being reset\)\. Check the driver/,
    );
    expect(tries).toBe(5);
  });

  test("our own destroy is no loss", async () => {
    const device = await open();
    device.destroy();
    const error = await device.submit().catch((cause: unknown) => cause);
    expect(error).not.toBeInstanceOf(DeviceLostError);
    expect(error).toMatchObject({ retryable: false });
  });
});

test("the cpu device does not get lost", () => {
  expect("reopen" in new CpuDevice()).toBe(false);
});
