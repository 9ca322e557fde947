/** `grpu device`: what the machine offers, and how fast it is. */
import type { Device } from "../../compute/device.ts";
import type { Ceilings } from "../../compute/measure.ts";
import type { Command, Input, Io } from "../command.ts";
import { DEVICE } from "../options.ts";

export const deviceCommand: Command = {
  path: "device",
  summary: "show the GPU, or what replaces it, and measure its speed",
  options: [DEVICE, { flag: "--json", describe: "print one JSON object" }],
  examples: ["grpu device", "grpu device --device cpu", "grpu device --json"],
  async run(input, io) {
    const { openDevice } = await import("../../compute/open.ts");
    const device = await openDevice({ device: (input.options.device as "auto" | undefined) ?? "auto" });
    try {
      await show(device, { input, io });
    } finally {
      device.destroy();
    }
  },
};

async function show(device: Device, { input, io }: { input: Input; io: Io }): Promise<void> {
  const [{ measureCeilings }, { matmulFamily }] = await Promise.all([
    import("../../compute/measure.ts"),
    import("../../compute/matmul/matmul.ts"),
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
    `budget      ${bytes(memory.budget)} (memory_budget_bytes)`,
    "",
  ].join("\n");
}

const REASONS: Readonly<Record<string, string>> = {
  tiled: "the adapter is a GPU, where tiles in workgroup memory pay",
  subgroup:
    "the adapter computes on the CPU in vectors of 8: values are shared by subgroup broadcast, without barriers",
  rows: "barriers are slow on this adapter: each invocation keeps a tile in registers",
};

function measurements(it: Ceilings, { family, device }: { family: string; device: Device }): string {
  const reason = device.info.kind === "cpu" ? "the kernels' references, in plain TypeScript" : (REASONS[family] ?? "");
  return [
    `copy        ${bytes(it.copyBytesPerSecond)}/s measured`,
    `arithmetic  ${flops(it.arithmeticFlops)} measured, f32`,
    `matmul      ${flops(it.matmulFlops)} measured, f32`,
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
