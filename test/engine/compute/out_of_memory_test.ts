/** What happens when memory runs out: beyond the budget, refused by the driver, and how a caller goes back. */
import { describe, expect, test } from "vitest";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { readFloats } from "../../../src/engine/compute/device.ts";
import { BufferPool } from "../../../src/engine/compute/memory.ts";
import { WebGpuDevice } from "../../../src/engine/compute/webgpu/device.ts";
import { ConfigError, OutOfMemoryError } from "../../../src/leaves/errors.ts";
import { gpuDevice, overDevices } from "../../fixtures/devices.ts";

/** Makes the driver refuse the allocations that `refuses` names, each with an invalid buffer as WebGPU gives it. */
function refusing(device: WebGpuDevice, refuses: (label: string) => boolean): void {
  const { gpuDevice } = device;
  const create = gpuDevice.createBuffer.bind(gpuDevice);
  const pop = gpuDevice.popErrorScope.bind(gpuDevice);
  let refused = false;
  gpuDevice.createBuffer = (of) => {
    if (!refuses(of.label ?? "")) return create(of);
    refused = true;
    gpuDevice.pushErrorScope("validation");
    const invalid = create({ ...of, size: 2 * gpuDevice.limits.maxBufferSize });
    void pop();
    return invalid;
  };
  gpuDevice.popErrorScope = async () => {
    const wasRefused = refused;
    refused = false;
    const error = await pop();
    return wasRefused ? { message: "refused by the test" } : error;
  };
}

const open = async () => (await WebGpuDevice.open({ memoryBudgetBytes: 2 ** 20 }))!;

overDevices("going back to a mark", (device) => {
  test("forgets what was recorded since, and keeps what came before", async () => {
    const x = device.alloc(16, "x");
    device.clear(x);
    device.write(x, Float32Array.of(1));
    const mark = device.mark();
    device.write(x, Float32Array.of(2));
    device.clear(x);
    device.rollback(mark);
    expect([...(await readFloats(device, x))]).toEqual([1, 0, 0, 0]);
    device.release(x);
  });

  test("leaves alone what was submitted since the mark", async () => {
    const x = device.alloc(16, "x");
    const mark = device.mark();
    device.clear(x);
    device.write(x, Float32Array.of(1));
    await device.submit();
    expect(device.mark()).toBeGreaterThan(mark);
    device.clear(x);
    device.rollback(mark);
    expect([...(await readFloats(device, x))]).toEqual([1, 0, 0, 0]);
    device.release(x);
  });

  test("a later mark is beyond an earlier one by what was recorded", () => {
    const x = device.alloc(16, "x");
    const mark = device.mark();
    device.clear(x);
    expect(device.mark()).toBe(mark + 1);
    device.rollback(mark);
    expect(device.mark()).toBe(mark);
    device.release(x);
  });
});

describe("beyond the budget", () => {
  test("the error is an OutOfMemoryError, which is a ConfigError, with label and bytes", () => {
    const device = new CpuDevice({ memoryBudgetBytes: 4096 });
    const caught = thrownBy(() => device.alloc(8192, "activations"));
    expect(caught).toBeInstanceOf(OutOfMemoryError);
    expect(caught).toBeInstanceOf(ConfigError);
    expect(caught).toMatchObject({ name: "OutOfMemoryError", label: "activations", bytes: 8192, kind: "config" });
  });
});

describe("a pool whose storage cannot be made", () => {
  const pool = (failures: number) => {
    const events: string[] = [];
    const made = new BufferPool<string>(
      {
        create(capacity) {
          events.push(`create ${capacity}`);
          if (capacity === 1024 && failures-- > 0) throw new RangeError("Array buffer allocation failed");
          return "";
        },
        destroy: (storages) => void events.push(`destroy ${storages.length}`),
      },
      { budget: 2 ** 20, maxBufferBytes: 2 ** 20 },
    );
    made.release(made.alloc(512, "free"));
    return { made, events };
  };

  test("is trimmed and tries once more", () => {
    const { made, events } = pool(1);
    made.alloc(1024, "second");
    expect(events).toEqual(["create 512", "create 1024", "destroy 1", "create 1024"]);
    expect(made.live).toBe(1024);
  });

  test("says what was refused when the second try fails", () => {
    const { made, events } = pool(2);
    const caught = thrownBy(() => made.alloc(1024, "second"));
    expect(caught).toMatchObject({ name: "OutOfMemoryError", label: "second", bytes: 1024 });
    expect((caught as Error).message).toMatch(/the driver refuses it with 0\.0 KiB in use \(Array buffer allocation/);
    expect(events).toEqual(["create 512", "create 1024", "destroy 1", "create 1024"]);
    expect(made.live).toBe(0);
  });
});

describe.skipIf(!gpuDevice)("a driver that refuses an allocation", () => {
  test("once: the buffer is made again after trimming, under its slices too, and the work runs", async () => {
    const device = await open();
    let refusals = 1;
    refusing(device, (label) => label === "x" && refusals-- > 0);
    const other = device.alloc(512, "other");
    device.clear(other);
    const x = device.alloc(1024, "x");
    const half = x.slice(512, 512);
    device.release(other);
    device.clear(x);
    device.write(half, Float32Array.of(3));
    expect((await readFloats(device, x))[128]).toBe(3);
    expect(device.memory.pooled).toBe(0);
    expect(refusals).toBeLessThan(0);
    device.destroy();
  });

  test("twice: submit says so before any of the work has run, and the device stays usable", async () => {
    const device = await open();
    refusing(device, (label) => label === "activations");
    const kept = device.upload(Float32Array.of(1, 2), "kept");
    await device.submit();
    device.clear(kept);
    const refused = device.alloc(1024, "activations");
    device.copy(kept, refused);
    await expect(device.submit()).rejects.toMatchObject({
      name: "OutOfMemoryError",
      label: "activations",
      bytes: 1024,
    });
    expect([...(await readFloats(device, kept, 2))]).toEqual([1, 2]);
    device.release(refused);
    expect(device.memory).toMatchObject({ live: 256, pooled: 0 });
    device.destroy();
  });

  test("under a buffer that the host wrote to at once: read rejects, and nothing else is reported later", async () => {
    const device = await open();
    refusing(device, (label) => label === "weights");
    const refused = device.upload(Float32Array.of(1), "weights");
    await expect(readFloats(device, refused)).rejects.toThrow(
      /Cannot allocate weights \(0\.3 KiB\): the driver refuses it with .* in use \(refused by the test\)/,
    );
    device.release(refused);
    const after = device.upload(Float32Array.of(5), "after");
    expect([...(await readFloats(device, after))]).toEqual([5]);
    device.destroy();
  });

  test("room is made without destroying what waiting work and reads still name", async () => {
    const device = await open();
    let refusals = 1;
    refusing(device, (label) => label === "x" && refusals-- > 0);
    const y = device.upload(Float32Array.of(7), "y");
    const x = device.alloc(1024, "x");
    device.clear(x);
    const first = device.submit();
    const second = readFloats(device, y);
    device.release(y);
    await first;
    expect([...(await second)]).toEqual([7]);
    device.destroy();
  });

  test("a wrong write to a fresh buffer is still reported", async () => {
    const device = await open();
    const x = device.alloc(256, "x");
    device.write(x, new Float32Array(1000));
    await expect(device.submit()).rejects.toThrow(/Cannot run the recorded GPU work/);
    device.destroy();
  });
});

function thrownBy(run: () => unknown): unknown {
  try {
    run();
  } catch (error) {
    return error;
  }
  return undefined;
}
