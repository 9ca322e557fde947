/** How much memory a device takes when nobody says it. */
import { describe, expect, test, vi } from "vitest";
import { askPlatform, type SystemProbe, thisSystem } from "../../../src/engine/compute/budget/adapter.ts";
import { chooseBudget } from "../../../src/engine/compute/budget/choose.ts";
import {
  budgetOf,
  type MemoryBudget,
  mainMemory,
  mainMemoryBudget,
  PAGE_BUDGET,
} from "../../../src/engine/compute/budget/machine.ts";
import { CpuDevice } from "../../../src/engine/compute/cpu.ts";
import { WebGpuDevice } from "../../../src/engine/compute/webgpu/device.ts";
import { probeMemory } from "../../../src/engine/compute/webgpu/probe.ts";
import { gpuDevice } from "../../fixtures/devices.ts";

const MIB = 2 ** 20;
const GIB = 2 ** 30;

const adapter = (vendor: string, device = "", architecture = "") => ({
  vendor,
  architecture,
  device,
  isSoftware: false,
});

function system(parts: Partial<SystemProbe> = {}): SystemProbe {
  return {
    platform: "linux",
    memory: { total: 32 * GIB, available: 30 * GIB },
    readText: () => undefined,
    list: () => [],
    run: async () => undefined,
    ...parts,
  };
}

describe("main memory", () => {
  test("half of the total, in steps of 256 MiB", () => {
    const { bytes, source } = mainMemoryBudget({ total: 16.1 * GIB, available: 15 * GIB });
    expect(bytes).toBe(8 * GIB);
    expect(source).toBe("half of 16.1 GiB of main memory");
  });

  test("less where less is available", () => {
    const { bytes, source } = mainMemoryBudget({ total: 16 * GIB, available: 4 * GIB });
    expect(bytes).toBe(3 * GIB);
    expect(source).toMatch(/three quarters of the 4\.0 GiB/);
  });

  test("a machine with little memory gets less than a step, not nothing", () => {
    expect(budgetOf(100 * MIB, "").bytes).toBe(100 * MIB);
    expect(budgetOf(-5, "").bytes).toBe(64 * MIB);
  });

  test("half where just that is available, in whole steps from the first on", () => {
    expect(mainMemoryBudget({ total: 12 * GIB, available: 8 * GIB }).source).toBe("half of 12.0 GiB of main memory");
    expect(budgetOf(256 * MIB - 1, "").bytes).toBe(256 * MIB - 1);
    expect(budgetOf(256 * MIB, "").bytes).toBe(256 * MIB);
    expect(budgetOf(512 * MIB - 1, "").bytes).toBe(256 * MIB);
    expect(budgetOf(100.5, "").bytes).toBe(64 * MIB);
    expect(budgetOf(70 * MIB + 0.5, "").bytes).toBe(70 * MIB);
  });

  test.each([
    // Of a machine with 16 GiB, 10 GiB of them free. Without a control group the limit is 0 or beyond any machine's memory.
    [{ limit: 0 }, { total: 16, available: 10 }],
    [{ limit: 2 ** 54 }, { total: 16, available: 10 }],
    [{ limit: 4 }, { total: 4, available: 4 }],
    [
      { limit: 4, free: 3 },
      { total: 4, available: 3 },
    ],
    [{ limit: undefined }, { total: 16, available: 10 }],
    [
      { limit: 0, free: undefined },
      { total: 16, available: 9 },
    ],
  ])("%o GiB of a control group are %o", ({ limit, ...more }, { total, available }) => {
    const free = "free" in more ? more.free : 10;
    const asked = (value: number | undefined) => (value === undefined ? undefined : () => value * GIB);
    const os = { totalmem: () => 16 * GIB, freemem: () => 9 * GIB };
    vi.stubGlobal("process", {
      versions: {},
      getBuiltinModule: () => os,
      constrainedMemory: asked(limit),
      availableMemory: asked(free),
    });
    const found = mainMemory();
    vi.unstubAllGlobals();
    expect(found).toEqual({ total: total * GIB, available: available * GIB });
  });

  test("that this process may not ask for is not known, so the budget is a page's", () => {
    const refuse = () => {
      throw new Error("Requires sys access");
    };
    vi.stubGlobal("process", { versions: {}, getBuiltinModule: () => ({ totalmem: refuse }) });
    const found = [mainMemory(), mainMemoryBudget()];
    vi.unstubAllGlobals();
    expect(found).toEqual([undefined, PAGE_BUDGET]);
    expect(PAGE_BUDGET.bytes).toBe(2 * GIB);
  });

  test("is this machine's", () => {
    const { total, available } = mainMemory()!;
    expect(total).toBeGreaterThan(64 * MIB);
    expect(available).toBeGreaterThan(0);
    expect(available).toBeLessThanOrEqual(total);
  });
});

describe("what the platform says", () => {
  const smi = (text: string) => system({ run: async (program) => (program === "nvidia-smi" ? text : undefined) });

  test("nvidia-smi: free memory of the card of that name, less a sixteenth", async () => {
    const rows = smi("NVIDIA GeForce RTX 3060, 12288, 11000\nNVIDIA H200, 143771, 143000\n");
    const { bytes, source } = (await askPlatform(adapter("nvidia", "nvidia-h200"), rows))!;
    expect(bytes).toBe(budgetOf(143000 * MIB - (143771 * MIB) / 16, "").bytes);
    expect(source).toMatch(/nvidia-smi: 139\.6 GiB of 140\.4 GiB are free, 8\.8 GiB stay reserved/);
  });

  test("nvidia-smi: of cards that cannot be told apart, the one with the least free memory", async () => {
    const rows = smi("NVIDIA A, 16384, 16000\nNVIDIA A, 16384, 9216\n");
    expect((await askPlatform(adapter("nvidia", "nvidia-a"), rows))!.bytes).toBe(8 * GIB);
    expect((await askPlatform(adapter("nvidia", "another-name"), rows))!.bytes).toBe(8 * GIB);
  });

  test("a small card keeps at least 512 MiB free", async () => {
    expect((await askPlatform(adapter("nvidia"), smi("X, 4096, 4096")))!.bytes).toBe(3.5 * GIB);
  });

  test("nvidia-smi without a figure for free memory says nothing", async () => {
    expect(await askPlatform(adapter("nvidia"), smi("X, 4096, [N/A]"))).toBeUndefined();
  });

  test("amdgpu: the card's memory less what is in use", async () => {
    const files: Record<string, string> = {
      "/sys/class/drm/card1/device/mem_info_vram_total": `${16 * GIB}\n`,
      "/sys/class/drm/card1/device/mem_info_vram_used": `${2 * GIB}\n`,
    };
    const amd = system({ list: () => ["card0", "card1", "card1-DP-1"], readText: (path) => files[path] });
    const { bytes, source } = (await askPlatform(adapter("amd"), amd))!;
    expect(bytes).toBe(13 * GIB);
    expect(source).toMatch(/^amdgpu: 14\.0 GiB of 16\.0 GiB/);
  });

  test("amdgpu: a GPU inside the processor shares main memory", async () => {
    const amd = system({
      list: () => ["card0"],
      readText: (path) => (path.endsWith("vram_total") ? String(GIB / 2) : undefined),
    });
    expect((await askPlatform(adapter("amd"), amd))!.source).toBe("half of 32.0 GiB of main memory");
  });

  test("macOS: Metal's share, or the limit that the user set", async () => {
    const mac = (total: number, limit?: string) =>
      system({ platform: "darwin", memory: { total, available: 1 }, run: async () => limit });
    expect((await askPlatform(adapter("apple"), mac(24 * GIB)))!.bytes).toBe(15 * GIB);
    expect((await askPlatform(adapter("apple"), mac(64 * GIB)))!.bytes).toBe(45 * GIB);
    expect((await askPlatform(adapter("apple"), mac(24 * GIB, "0\n")))!.bytes).toBe(15 * GIB);
    expect((await askPlatform(adapter("apple"), mac(24 * GIB, "20480\n")))!.bytes).toBe(18.75 * GIB);
  });

  test("software adapters and Intel's integrated ones take main memory, Intel's cards do not", async () => {
    const half = { bytes: 16 * GIB };
    expect(await askPlatform({ ...adapter("mesa"), isSoftware: true }, system())).toMatchObject(half);
    expect(await askPlatform(adapter("intel", "", "gen-12lp"), system())).toMatchObject(half);
    expect(await askPlatform(adapter("intel", "", "xe-2-lpg"), system())).toMatchObject(half);
    expect(await askPlatform(adapter("intel", "", "xe-hpg"), system())).toBeUndefined();
  });

  test("amdgpu: the card with the least free memory; one whose use is not known counts as free", async () => {
    const files: Record<string, string> = {
      "/sys/class/drm/card0/device/mem_info_vram_total": String(24 * GIB),
      "/sys/class/drm/card1/device/mem_info_vram_total": String(16 * GIB),
      "/sys/class/drm/card0/device/mem_info_vram_used": String(12 * GIB),
    };
    const amd = system({ list: () => ["card1", "card0", "renderD128"], readText: (path) => files[path] });
    expect((await askPlatform(adapter("amd"), amd))!.source).toMatch(
      /^amdgpu: 12\.0 GiB of 24\.0 GiB are free, 1\.5 GiB/,
    );
    files["/sys/class/drm/card0/device/mem_info_vram_used"] = "0";
    expect((await askPlatform(adapter("amd"), amd))!.source).toMatch(/^amdgpu: 16\.0 GiB of 16\.0 GiB are free/);
  });

  test.each([
    [3 * GIB - 1, /half of 32\.0 GiB of main memory/],
    [3 * GIB, /^amdgpu: 3\.0 GiB/],
  ])("amdgpu: a card of %i bytes", async (total, source) => {
    const amd = system({ list: () => ["card0"], readText: (path) => (path.endsWith("total") ? String(total) : "0") });
    expect((await askPlatform(adapter("amd"), amd))!.source).toMatch(source);
  });

  test.each([
    ["amd", "darwin"],
    ["apple", "linux"],
  ])("%s on %s says nothing", async (vendor, platform) => {
    const files = system({
      platform,
      list: () => ["card0"],
      readText: () => String(16 * GIB),
      run: async () => "4096",
    });
    expect(await askPlatform(adapter(vendor), files)).toBeUndefined();
  });

  test("macOS: two thirds up to 36 GiB", async () => {
    const mac = (total: number) => system({ platform: "darwin", memory: { total, available: 1 } });
    expect((await askPlatform(adapter("apple"), mac(36 * GIB)))!.source).toMatch(
      /^Metal's share of main memory: 24\.0 GiB/,
    );
    expect((await askPlatform(adapter("apple"), mac(40 * GIB)))!.source).toMatch(
      /^Metal's share of main memory: 30\.0 GiB/,
    );
  });

  test("this machine answers, and says nothing of files and programs that it lacks", async () => {
    const here = thisSystem()!;
    expect(here.platform).toBe(process.platform);
    expect(here.readText("/no/such/file")).toBeUndefined();
    expect(here.list("/no/such/folder")).toEqual([]);
    expect(here.list(".")).toContain("package.json");
    expect(here.readText("package.json")).toContain('"grpu"');
    expect(await here.run("no-such-program", [])).toBeUndefined();
    expect(await here.run(process.execPath, ["-e", "console.log(6 * 7)"])).toBe("42\n");
  });

  test("nothing says it: missing programs, cards of others, garbage", async () => {
    expect(await askPlatform(adapter("nvidia"), system())).toBeUndefined();
    expect(
      await askPlatform(adapter("nvidia"), smi("Failed to initialize NVML: Driver/library version")),
    ).toBeUndefined();
    expect(await askPlatform(adapter("amd"), system({ list: () => ["card0"] }))).toBeUndefined();
    const empty = system({ list: () => ["card0"], readText: () => "0\n" });
    expect(await askPlatform(adapter("amd"), empty)).toBeUndefined();
    expect(await askPlatform(adapter("qualcomm"), system())).toBeUndefined();
  });

  test("then it is probed; a page does neither", async () => {
    const probed: MemoryBudget = { bytes: 1, source: "probed" };
    expect(await chooseBudget(adapter("qualcomm"), async () => probed, system())).toBe(probed);
    const unprobed = () => expect.unreachable("a page must not probe");
    expect((await chooseBudget(adapter("nvidia"), async () => probed, smi("X, 4096, 4096"))).source).toMatch(/nvidia/);
    const hidden = process.versions;
    Object.defineProperty(process, "versions", { value: undefined, configurable: true });
    const inPage = await chooseBudget(adapter("nvidia"), unprobed).finally(() =>
      Object.defineProperty(process, "versions", { value: hidden, configurable: true }),
    );
    expect(inPage).toBe(PAGE_BUDGET);
  });
});

describe("a device's budget", () => {
  test("is the stated one, or says where it comes from", () => {
    expect(new CpuDevice({ memoryBudgetBytes: 12_345 }).memory).toMatchObject({
      budget: 12_345,
      budgetSource: "memory_budget_bytes",
    });
    expect(new CpuDevice().memory.budgetSource).toMatch(/of main memory/);
  });

  test.skipIf(!gpuDevice)("of a software GPU is a share of main memory", async () => {
    expect(gpuDevice!.memory.budgetSource).toMatch(gpuDevice!.info.family === "scalar" ? /main memory/ : /./);
    expect(gpuDevice!.memory.budget).toBeLessThan(mainMemory()!.total);
  });
});

describe("probing a driver", () => {
  /** Refuses above `most` bytes; each allocation takes a second where `clock` is given. */
  function driver(
    most: number,
    { maxBufferSize = 2 ** 40, clock }: { maxBufferSize?: number; clock?: () => void } = {},
  ) {
    const sizes: number[] = [];
    const scopes: (object | null)[] = [];
    let [held, isDestroyed] = [0, false];
    const gpu = {
      limits: { maxBufferSize },
      lost: new Promise(() => {}),
      pushErrorScope: () => {},
      popErrorScope: async () => scopes.pop() ?? null,
      createBuffer({ size }: { size: number }) {
        clock?.();
        sizes.push(size / MIB);
        held += size;
        if (held > most) scopes.push({});
      },
      createCommandEncoder: () => ({ clearBuffer: () => {}, finish: () => {} }),
      queue: { submit: () => {}, onSubmittedWorkDone: async () => {} },
      destroy: () => {
        isDestroyed = true;
      },
    };
    return { gpu: gpu as never, sizes, isDestroyed: () => isDestroyed };
  }

  test.each([
    ["grows by doubling up to 1 GiB, to the ceiling", 2 ** 40, {}, [256, 512, ...Array(7).fill(1024)]],
    ["takes a ceiling that its steps reach", 2 ** 40, { ceiling: 768 * MIB }, [256, 512]],
    ["stops where the driver refuses", 800 * MIB, {}, [256, 512, 1024]],
    ["keeps to the largest buffer", 2 ** 40, { maxBufferSize: 128 * MIB, ceiling: 400 * MIB }, [128, 128, 128]],
  ])("%s", async (_, most, { maxBufferSize, ceiling }: { maxBufferSize?: number; ceiling?: number }, sizes) => {
    const { gpu, sizes: found, isDestroyed } = driver(most, { ...(maxBufferSize && { maxBufferSize }) });
    const { bytes, source } = await probeMemory(gpu, { limitMs: 50_000, ...(ceiling && { ceiling }) });
    expect(found).toEqual(sizes);
    const kept = sizes.filter((_, i) => most > GIB || i < 2).reduce((sum, size) => sum + size, 0);
    expect(bytes).toBe(budgetOf(kept * 0.75 * MIB, "").bytes);
    expect(source).toMatch(most > GIB ? /, the most that is tried$/ : /768 MiB .*, before the driver refused$/);
    expect(isDestroyed()).toBe(true);
  });

  test("stops after its time", async () => {
    vi.useFakeTimers({ toFake: ["performance"] });
    const { gpu, sizes } = driver(2 ** 40, { clock: () => vi.advanceTimersByTime(1000) });
    const { source } = await probeMemory(gpu, { limitMs: 2000 }).finally(() => vi.useRealTimers());
    expect(sizes).toEqual([256, 512]);
    expect(source).toMatch(/the 768 MiB that could be allocated, before the time was up$/);
  });
});

describe.skipIf(!gpuDevice)("probing", () => {
  const open = async () => (await WebGpuDevice.open({ memoryBudgetBytes: 1 }))!.gpuDevice;

  test("stops at the ceiling and gives everything back", async () => {
    const device = await open();
    const found = await probeMemory(device, { ceiling: 800 * MIB, limitMs: 50_000 });
    expect(found.bytes).toBe(budgetOf(0.75 * 768 * MIB, "").bytes);
    expect(found.source).toMatch(/three quarters of the 768 MiB that could be allocated, the most that is tried/);
    expect((await device.lost).reason).toBe("destroyed");
  });

  test("stops where the driver refuses", async () => {
    const device = await open();
    const create = device.createBuffer.bind(device);
    let count = 0;
    device.createBuffer = (of) => create({ ...of, size: ++count === 2 ? 2 * device.limits.maxBufferSize : 1024 });
    const found = await probeMemory(device, { limitMs: 50_000 });
    expect(found.source).toMatch(/of the 256 MiB that could be allocated, before the driver refused/);
    expect(found.bytes).toBe(192 * MIB);
    expect(count).toBe(2);
  });

  test("stops when its time is up, and survives a lost device", async () => {
    expect((await probeMemory(await open(), { limitMs: 0 })).source).toMatch(/time was up/);
    const lost = await open();
    lost.destroy();
    expect((await probeMemory(lost)).bytes).toBe(64 * MIB);
  });
});
