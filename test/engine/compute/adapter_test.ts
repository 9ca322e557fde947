/** Choosing an adapter, a backend and toggles. */
import { describe, expect, test } from "vitest";
import { openDevice } from "../../../src/engine/compute/open.ts";
import { chosenAdapter, listAdapters } from "../../../src/engine/compute/webgpu/adapter.ts";
import { dawnFlags } from "../../../src/engine/compute/webgpu/dawn.ts";
import { ConfigError, UnsupportedError } from "../../../src/leaves/errors.ts";
import { grpu } from "../../fixtures/cli.ts";
import { gpuDevice } from "../../fixtures/devices.ts";

const adapters = gpuDevice ? await listAdapters() : [];
const software = adapters.find(({ type }) => type === "cpu");

test("flags of the webgpu package", () => {
  expect(dawnFlags({}, [])).toEqual(["disable-dawn-features=timestamp_quantization"]);
  expect(dawnFlags({ name: "Apple M1 Max", backend: "metal" }, ["a", "-b", "c"])).toEqual([
    "backend=metal",
    "adapter=Apple M1 Max",
    "enable-dawn-features=a,c",
    "disable-dawn-features=timestamp_quantization,b",
  ]);
});

describe.skipIf(!software)("an adapter that is there", () => {
  const { name, backend, index } = software ?? { name: "", backend: "", index: 0 };
  for (const adapter of [name, name.toUpperCase().slice(1, 9), index, String(index)])
    test(`is chosen by ${adapter}`, async () => {
      const device = await openDevice({ device: "webgpu", adapter, backend, memoryBudgetBytes: 1024 });
      expect(device.info.description).toBe(software!.driver);
      device.destroy();
    });

  test("toggles reach the driver", async () => {
    const device = await openDevice({ device: "webgpu", toggles: ["allow_unsafe_apis"], memoryBudgetBytes: 1024 });
    const experimental = device.info.features.filter((feature) => feature.startsWith("chromium-experimental"));
    expect(experimental).not.toEqual([]);
    expect(gpuDevice!.info.features).not.toContain(experimental[0]);
    device.destroy();
  });
});

test("adapters that only their place tells apart are refused, because Dawn takes them by name", () => {
  const all = ["Radeon", "RTX 4090 D", "RTX 4090", "Radeon"].map((name) => ({ name, backend: "vulkan" }));
  const others = [...all, { name: "RTX 4090", backend: "d3d12" }];
  expect(chosenAdapter(all, { adapter: 0 })).toBe(all[0]);
  expect(chosenAdapter(all, { adapter: "rtx" })).toBe(all[1]);
  expect(chosenAdapter(others, { adapter: "4090", backend: "d3d12" })).toBe(others[4]);
  for (const adapter of [2, 3])
    expect(() => chosenAdapter(all, { adapter })).toThrow(/the adapter [01] matches that name too \(R/);
});

describe.skipIf(adapters.length === 0)("an adapter that is not there", () => {
  test.each([
    [
      { adapter: "voodoo" },
      /\(device\.adapter=voodoo\): no adapter fits\. There are: 0 .+ \(\w+\) \(device\.adapter\)\./,
    ],
    [{ adapter: 99 }, /\(device\.adapter=99\): no adapter fits\. There are: 0 /],
    [{ adapter: 0, backend: "d3d9" }, /\(device\.adapter=0 device\.backend=d3d9\): no adapter fits/],
    [
      { backend: process.platform === "darwin" ? "d3d12" : "metal" },
      /no adapter fits\. There are: .*\(device\.backend\)/,
    ],
  ])("%o lists those that are, and never falls back to the cpu device", async (choice, says) => {
    const opening = openDevice({ device: "auto", ...choice });
    await expect(opening).rejects.toThrow(ConfigError);
    await expect(opening).rejects.toThrow(says);
  });
});

test("the cpu device takes no choice of a GPU", async () => {
  for (const choice of [{ adapter: "nvidia" }, { backend: "vulkan" }, { toggles: ["allow_unsafe_apis"] }]) {
    const opening = openDevice({ device: "cpu", ...choice });
    await expect(opening).rejects.toThrow(/Cannot choose a GPU on the device cpu/);
  }
});

test("a host's own WebGPU takes no choice", async () => {
  const gpu = { requestAdapter: async () => null } as unknown as GPU;
  const opening = openDevice({ gpu, adapter: "nvidia" });
  await expect(opening).rejects.toThrow(UnsupportedError);
  await expect(opening).rejects.toThrow(/device\.adapter=nvidia.*takes no choice.*Leave device\.adapter/);
});

describe.skipIf(!software)("grpu device --list", () => {
  test("prints what can be chosen", async () => {
    const { out, code } = await grpu(["device", "--list"]);
    expect(code).toBe(0);
    expect(out).toContain(`${software!.index}  ${software!.name}`);
    expect(out).toMatch(/type {6}cpu \(a software GPU\)/);
  });

  test("--json has limits and features", async () => {
    const { out } = await grpu(["device", "--list", "--json"]);
    expect(JSON.parse(out)).toEqual(adapters);
    expect(adapters[0]!.limits.maxBindingBytes).toBeGreaterThan(0);
    expect(adapters[0]!.features.length).toBeGreaterThan(0);
  });
});
