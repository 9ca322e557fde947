/** Chooses the device once, by name; an error never switches it. */
import { UnsupportedError } from "../errors.ts";
import { CpuDevice } from "./cpu.ts";
import type { Device } from "./device.ts";
import { WebGpuDevice, type WebGpuDeviceOptions } from "./webgpu/device.ts";

/** `auto` is WebGPU where an adapter answers, else `cpu`. */
export type DeviceName = "auto" | "webgpu" | "cpu";

/** Which device to open, and how much of its memory to use. */
export interface OpenDeviceOptions extends WebGpuDeviceOptions {
  /** `auto` uses WebGPU if there is an adapter, else `cpu`. Default `auto`. */
  readonly device?: DeviceName;
}

/**
 * Opens the compute device.
 * @throws UnsupportedError when `webgpu` is requested and there is no adapter.
 */
export async function openDevice(options: OpenDeviceOptions = {}): Promise<Device> {
  const wanted = options.device ?? "auto";
  if (wanted === "cpu") return new CpuDevice(options);
  const device = await WebGpuDevice.open(options);
  if (device) return device;
  if (wanted === "webgpu")
    throw new UnsupportedError(
      "Cannot open the device webgpu: there is no WebGPU adapter. Run `npm run setup` for a software one, install your GPU's Vulkan driver, or use --device cpu.",
      { part: "compute", capability: "webgpu" },
    );
  return new CpuDevice(options);
}
