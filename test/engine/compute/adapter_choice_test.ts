/** Which adapter is asked for, by whom and with which flags: the runtime's WebGPU and Dawn are fakes. */
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { chosenAdapter, findAdapter, listAdapters } from "../../../src/engine/compute/webgpu/adapter.ts";
import type { Gpu, GpuAdapter } from "../../../src/engine/compute/webgpu/types.ts";
import { ConfigError, UnsupportedError } from "../../../src/leaves/errors.ts";

interface Name {
  readonly name: string;
  readonly backend: string;
}

/** Dawn's adapters, undefined without Dawn; what was opened, and which adapter each set of flags answers with. */
const dawn = vi.hoisted(() => ({
  names: [] as readonly Name[] | undefined,
  opened: [] as string[],
  answers: new Map<string, unknown>(),
  requests: [] as unknown[],
}));

vi.mock("../../../src/engine/compute/webgpu/dawn.ts", async (original) => ({
  ...(await original<object>()),
  openDawn: async (flags: readonly string[]) => {
    if (!dawn.names) return undefined;
    dawn.opened.push(flags.join(" "));
    return {
      requestAdapter: async (options: unknown) => {
        dawn.requests.push(options);
        return dawn.answers.get(flags.join(" ")) ?? null;
      },
    };
  },
  dawnAdapters: async (backend?: string) => dawn.names?.filter((it) => backend === undefined || it.backend === backend),
}));

const GPUS = [
  { name: "RTX 4090", backend: "vulkan" },
  { name: "llvmpipe", backend: "vulkan" },
  { name: "Arc 3", backend: "d3d12" },
];

const adapterOf = (device: string, description = "a driver") =>
  ({
    info: { vendor: "v", architecture: "a", device, description },
    features: new Set(["f"]),
    limits: { maxBufferSize: 7 },
  }) as unknown as GpuAdapter;

/** What every instance is opened with. */
const ALWAYS = "disable-dawn-features=timestamp_quantization";

const gpuWith = (adapter: GpuAdapter | null) => ({ requestAdapter: vi.fn(async () => adapter) }) as unknown as Gpu;

beforeEach(() => {
  dawn.names = GPUS;
  dawn.opened = [];
  dawn.requests = [];
  dawn.answers = new Map();
  vi.stubGlobal("navigator", {});
  vi.stubGlobal("Deno", undefined);
});
afterEach(() => vi.unstubAllGlobals());

describe("a choice", () => {
  test.each([
    [{ adapter: "4090" }, `backend=vulkan adapter=RTX 4090 ${ALWAYS}`],
    [{ adapter: 2 }, `backend=d3d12 adapter=Arc 3 ${ALWAYS}`],
    [{ adapter: "LLVM", toggles: ["a", "-b"] }, /^backend=vulkan adapter=llvmpipe enable.*=a disable.*,b$/],
    [{ backend: "d3d12" }, `backend=d3d12 ${ALWAYS}`],
    [{ backend: "vulkan", toggles: ["a"] }, `backend=vulkan enable-dawn-features=a ${ALWAYS}`],
    [{ toggles: ["a"] }, `enable-dawn-features=a ${ALWAYS}`],
  ])("%o is made by Dawn's flags", async (choice, flags) => {
    expect(await findAdapter(undefined, choice)).toBeNull();
    expect(dawn.opened).toEqual([typeof flags === "string" ? flags : expect.stringMatching(flags)]);
    expect(dawn.requests).toEqual([{ powerPreference: "high-performance" }]);
  });

  test("gives the adapter that answers to the flags", async () => {
    const found = adapterOf("rtx");
    dawn.answers.set(`backend=vulkan adapter=RTX 4090 ${ALWAYS}`, found);
    expect(await findAdapter(undefined, { adapter: 0 })).toBe(found);
  });

  const LIST = "There are: 0 RTX 4090 (vulkan), 1 llvmpipe (vulkan), 2 Arc 3 (d3d12)";
  test.each([
    [{ adapter: "voodoo" }, "device.adapter=voodoo", "device.adapter"],
    [{ adapter: 3, backend: "vulkan" }, "device.adapter=3 device.backend=vulkan", "device.adapter"],
    [{ adapter: 2, backend: "vulkan" }, "device.adapter=2 device.backend=vulkan", "device.adapter"],
    [{ backend: "metal" }, "device.backend=metal", "device.backend"],
    [{ backend: "metal", toggles: ["a", "b"] }, "device.backend=metal device.toggles=[a,b]", "device.backend"],
  ])("%o that no adapter fits is refused with those that there are", async (choice, said, path) => {
    const error: unknown = await findAdapter(undefined, choice).catch((cause: unknown) => cause);
    expect(error).toBeInstanceOf(ConfigError);
    expect(error).toMatchObject({ path });
    expect((error as Error).message).toContain(
      `Cannot use the GPU asked for (${said}): no adapter fits. ${LIST} (${path}).`,
    );
    expect(dawn.opened).toEqual([]);
  });

  test("on a machine without adapters says so; toggles alone choose none", async () => {
    dawn.names = [];
    await expect(findAdapter(undefined, { adapter: 0 })).rejects.toThrow(
      "This machine has no adapter (device.adapter).",
    );
    expect(await findAdapter(undefined, { toggles: ["a"] })).toBeNull();
  });

  test.each([
    ["the host's WebGPU", gpuWith(adapterOf("host")), GPUS],
    ["a runtime without Dawn", undefined, undefined],
  ])("is nothing for %s", async (_, injected, names) => {
    dawn.names = names;
    const choice = { adapter: 1, backend: "vulkan", toggles: ["a", "b"] };
    const error: unknown = await findAdapter(injected, choice).catch((cause: unknown) => cause);
    expect(error).toBeInstanceOf(UnsupportedError);
    expect(error).toMatchObject({ part: "compute", capability: "device.adapter" });
    expect((error as Error).message).toContain(
      "Cannot choose the adapter (device.adapter=1 device.backend=vulkan device.toggles=[a,b]): this runtime's",
    );
  });
});

describe("without a choice", () => {
  const [host, own, package_] = [adapterOf("host"), adapterOf("runtime"), adapterOf("dawn")];

  test.each([
    { injected: true, navigator: true, deno: false, dawns: true, takes: host },
    { injected: false, navigator: true, deno: false, dawns: true, takes: own },
    { injected: false, navigator: false, deno: false, dawns: true, takes: package_ },
    // Deno's own WebGPU is slower.
    { injected: false, navigator: true, deno: true, dawns: true, takes: package_ },
    { injected: false, navigator: true, deno: true, dawns: false, takes: own },
    { injected: false, navigator: false, deno: true, dawns: false, takes: null },
    { injected: false, navigator: false, deno: false, dawns: false, takes: null },
  ])("%o", async ({ injected, navigator, deno, dawns, takes }) => {
    if (navigator) vi.stubGlobal("navigator", { gpu: gpuWith(own) });
    if (deno) vi.stubGlobal("Deno", {});
    if (!dawns) dawn.names = undefined;
    dawn.answers.set(ALWAYS, package_);
    expect(await findAdapter(injected ? gpuWith(host) : undefined, { toggles: [] })).toBe(takes);
    expect(dawn.opened).toEqual(takes === package_ ? [ALWAYS] : []);
  });

  test("the fast adapter of several is asked for", async () => {
    const gpu = gpuWith(host);
    await findAdapter(gpu, {});
    expect(gpu.requestAdapter).toHaveBeenCalledWith({ powerPreference: "high-performance" });
  });
});

describe("a name, or a part of one", () => {
  const all = ["Zero", "B-1", "C 0x1", "Arc 5", "E"].map((name) => ({ name, backend: "vulkan" }));

  test.each([
    // Places are whole numbers below the count of adapters, everything else is a part of a name.
    [0, "Zero"],
    ["4", "E"],
    [5, "Arc 5"],
    [-1, "B-1"],
    ["0x1", "C 0x1"],
    ["b", "B-1"],
  ])("%s is %s", (adapter, name) => {
    expect(chosenAdapter(all, { adapter }).name).toBe(name);
  });

  test("a place may have two digits", () => {
    const twelve = Array.from({ length: 12 }, (_, i) => ({ name: `card ${"abcdefghijkl"[i]}`, backend: "vulkan" }));
    expect(chosenAdapter(twelve, { adapter: 10 }).name).toBe("card k");
  });

  test("an adapter that Dawn would not take, because another one's name contains its own", () => {
    const twins = [
      { name: "RTX 4090 D", backend: "vulkan" },
      { name: "RTX 4090", backend: "vulkan" },
    ];
    const choose = () => chosenAdapter(twins, { adapter: 1, toggles: ["a"] });
    expect(choose).toThrow(UnsupportedError);
    expect(choose).toThrow(expect.objectContaining({ part: "compute", capability: "device.adapter" }) as Error);
    expect(choose).toThrow(
      "Cannot use the GPU asked for (device.adapter=1 device.toggles=[a]): the adapter 0 matches that name too (RTX 4090 D), and",
    );
  });
});

describe("the list", () => {
  const LISTED = { vendor: "v", architecture: "a", driver: "a driver", features: ["f"], limits: { maxBufferBytes: 7 } };

  test("has every adapter that answers, by its place among all", async () => {
    dawn.answers.set(`backend=vulkan adapter=llvmpipe ${ALWAYS}`, adapterOf("x", "llvmpipe (LLVM 15)"));
    dawn.answers.set(`backend=d3d12 adapter=Arc 3 ${ALWAYS}`, adapterOf("y"));
    expect(await listAdapters()).toMatchObject([
      { ...LISTED, index: 1, name: "llvmpipe", backend: "vulkan", type: "cpu", driver: "llvmpipe (LLVM 15)" },
      { ...LISTED, index: 2, name: "Arc 3", backend: "d3d12", type: "gpu" },
    ]);
    expect(dawn.opened).toHaveLength(3);
  });

  test("without Dawn has the runtime's adapter, if there is one", async () => {
    dawn.names = undefined;
    expect(await listAdapters()).toEqual([]);
    vi.stubGlobal("navigator", { gpu: gpuWith(adapterOf("the runtime's")) });
    expect(await listAdapters()).toMatchObject([
      { ...LISTED, index: 0, name: "the runtime's", backend: "", type: "gpu" },
    ]);
  });
});
