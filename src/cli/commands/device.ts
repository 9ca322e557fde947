/** `grpu device`: what the machine offers, and how fast it is. */
import type { Device, DeviceInfo } from "../../engine/compute/device.ts";
import type { ProductChoice } from "../../engine/compute/matmul/tiles.ts";
import type { Ceilings } from "../../engine/compute/measure.ts";
import type { OpenDeviceOptions } from "../../engine/compute/open.ts";
import type { ListedAdapter } from "../../engine/compute/webgpu/adapter.ts";
import type { Command, Input, Io } from "../command.ts";
import { ADAPTER, adapterOf, DEVICE } from "../options.ts";

export const deviceCommand: Command = {
  path: "device",
  summary: "show the GPU, or what replaces it, and measure its speed",
  options: [
    DEVICE,
    ...ADAPTER,
    {
      flag: "--toggles",
      value: "LIST",
      describe: "Dawn's toggles as in device.toggles, separated by commas: some features are hidden without",
    },
    {
      flag: "--products",
      value: "NAME",
      describe: "kernels of large products, as in device.products",
      choices: ["auto", "tiled", "tiled_large", "subgroup_matrix"],
    },
    { flag: "--list", describe: "list the GPUs that can be chosen, and measure nothing" },
    { flag: "--json", describe: "print JSON: one object, or with --list an array" },
  ],
  examples: ["grpu device", "grpu device --device cpu", "grpu device --list", "grpu device --adapter nvidia --json"],
  async run(input, io) {
    if (input.options.list === true) return list(input, io);
    const { openDevice } = await import("../../engine/compute/open.ts");
    const device = await openDevice({
      device: (input.options.device as "auto" | undefined) ?? "auto",
      ...adapterOf(input.options),
      ...productsOf(input.options),
    });
    try {
      await show(device, { input, io });
    } finally {
      device.destroy();
    }
  },
};

function productsOf({ toggles, products }: Input["options"]): Pick<OpenDeviceOptions, "toggles" | "products"> {
  return {
    ...(toggles === undefined ? {} : { toggles: String(toggles).split(",") }),
    ...(products === undefined ? {} : { products: products as ProductChoice }),
  };
}

async function list({ options }: Input, io: Io): Promise<void> {
  const { listAdapters } = await import("../../engine/compute/webgpu/adapter.ts");
  const adapters = await listAdapters();
  if (options.json) {
    io.out(`${JSON.stringify(adapters, null, 2)}\n`);
    return;
  }
  if (adapters.length === 0)
    io.out("no adapter answers: `npm run setup` gets a software one, a GPU needs its driver\n");
  io.out(adapters.map(entry).join("\n"));
}

function entry(adapter: ListedAdapter): string {
  return [
    `${adapter.index}  ${adapter.name}`,
    `   backend   ${adapter.backend || "-"}`,
    `   type      ${adapter.type === "cpu" ? "cpu (a software GPU)" : "gpu"}`,
    `   vendor    ${[adapter.vendor, adapter.architecture].filter(Boolean).join(", ") || "-"}`,
    `   driver    ${adapter.driver || "-"}`,
    `   binding   at most ${bytes(adapter.limits.maxBindingBytes)}, buffer ${bytes(adapter.limits.maxBufferBytes)}`,
    `   features  ${adapter.features.join(", ") || "none"}`,
    "",
  ].join("\n");
}

async function show(device: Device, { input, io }: { input: Input; io: Io }): Promise<void> {
  const [{ measureCeilings }, { matmulFamily }] = await Promise.all([
    import("../../engine/compute/measure.ts"),
    import("../../engine/compute/matmul/matmul.ts"),
  ]);
  const family = matmulFamily(device);
  if (!input.options.json) io.out(describe(device));
  const ceilings = await measureCeilings(device);
  if (input.options.json) {
    const { live: _live, pooled: _pooled, ...memory } = device.memory;
    io.out(`${JSON.stringify({ ...device.info, matmulFamily: family, memory, measured: ceilings })}\n`);
  } else io.out(measurements(ceilings, { family, device }));
}

function describe({ info, memory }: Device): string {
  const { limits } = info;
  return [
    `device      ${info.kind}`,
    `adapter     ${info.description}`,
    `vendor      ${[info.vendor, info.architecture].filter(Boolean).join(", ") || "-"}`,
    `features    ${info.features.join(", ") || "none"}`,
    `binding     at most ${bytes(limits.maxBindingBytes)}`,
    `buffer      at most ${bytes(limits.maxBufferBytes)}`,
    `workgroup   at most ${limits.maxWorkgroupInvocations} invocations, ${bytes(limits.maxWorkgroupStorageBytes)} shared`,
    `matrices    ${matrices(info)}`,
    `budget      ${bytes(memory.budget)}: ${memory.budgetSource}`,
    "",
  ].join("\n");
}

/** Whether products can use the matrix units of subgroups. */
function matrices({ subgroupMatrix }: DeviceInfo): string {
  if (!subgroupMatrix) return "-";
  const { isUsed, missing } = subgroupMatrix;
  if (missing !== undefined) return `device.products=subgroup_matrix is not available: ${missing}`;
  return `device.products=subgroup_matrix is ${isUsed ? "used" : "available"}`;
}

const REASONS: Readonly<Record<string, string>> = {
  tiled: "the adapter is a GPU; tiles of 64 x 64 in workgroup memory",
  tiled_large: "the adapter is a GPU; tiles of 128 x 64 in registers, smaller ones where these are few",
  subgroup:
    "the adapter computes on the CPU in vectors of 8: values are shared by subgroup broadcast, without barriers",
  rows: "barriers are slow on this adapter: each invocation keeps a tile in registers",
};

function measurements(ceilings: Ceilings, { family, device }: { family: string; device: Device }): string {
  const { kind, tileSource } = device.info;
  const why = [REASONS[family], tileSource].filter(Boolean).join("; ");
  const reason = kind === "cpu" ? "the kernels' references, in plain TypeScript" : why;
  return [
    `copy        ${bytes(ceilings.copyBytesPerSecond)}/s measured`,
    `arithmetic  ${flops(ceilings.arithmeticFlops)} measured, f32`,
    `matmul      ${flops(ceilings.matmulFlops)} measured, f32`,
    `kernels     ${family}: ${reason}`,
    "",
  ].join("\n");
}

function flops(value: number): string {
  return value >= 1e12 ? `${(value / 1e12).toPrecision(3)} TFLOP/s` : `${(value / 1e9).toPrecision(3)} GFLOP/s`;
}

function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value > 0 ? Math.min(Math.floor(Math.log2(value) / 10), units.length - 1) : 0;
  return `${Number((value / 1024 ** power).toPrecision(3))} ${units[power]}`;
}
