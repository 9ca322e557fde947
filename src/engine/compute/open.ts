/** Chooses the device once, by name; an error never switches it. */
import { ConfigError, UnsupportedError } from "../../leaves/errors.ts";
import { CpuDevice } from "./cpu.ts";
import type { Device } from "./device.ts";
import type { ProductChoice } from "./matmul/tiles.ts";
import { WebGpuDevice, type WebGpuDeviceOptions } from "./webgpu/device.ts";

/** `auto` is WebGPU where an adapter answers, else `cpu`. */
export type DeviceName = "auto" | "webgpu" | "cpu";

/** Choice of the device to open, and how much of its memory to use. */
export interface OpenDeviceOptions extends WebGpuDeviceOptions {
  /** `auto` uses WebGPU if there is an adapter, else `cpu`. Default `auto`. */
  readonly device?: DeviceName;
  /**
   * Kernels of large products on a GPU. `auto` measures them once per adapter and driver. `subgroup_matrix` uses matrix units, in f16 or
   * f32, with which a row's bits depend on whether 128 rows are multiplied. Default `auto`.
   */
  readonly products?: ProductChoice | undefined;
}

/**
 * Opens the compute device.
 * @throws UnsupportedError when `webgpu` or a certain GPU is requested and there is no adapter, ConfigError for a GPU's choice with
 *   `cpu`, and for `products` on a device that is no GPU; UnsupportedError for a GPU whose matrix units cannot be used, or multiply wrongly.
 */
export async function openDevice(options: OpenDeviceOptions = {}): Promise<Device> {
  const { products = "auto" } = options;
  const device = await openNamed(options);
  if (device.info.family !== "tiled" && products === "auto") return device;
  try {
    // A page loads it where there is a GPU to measure.
    const { chooseTiles } = await import("./matmul/tiles.ts");
    const tiles = await chooseTiles(device, products);
    if (device instanceof WebGpuDevice) device.info = { ...device.info, ...tiles };
    return device;
  } catch (error) {
    device.destroy();
    throw error;
  }
}

async function openNamed(options: OpenDeviceOptions): Promise<Device> {
  const wanted = options.device ?? "auto";
  const { adapter, backend, toggles = [] } = options;
  const isChoice = adapter !== undefined || backend !== undefined || toggles.length > 0;
  if (wanted === "cpu" && isChoice)
    throw new ConfigError(
      "Cannot choose a GPU on the device cpu. Remove device.adapter, device.backend and device.toggles, or set device=webgpu.",
      { path: "device" },
    );
  if (wanted === "cpu") return new CpuDevice(options);
  const device = await WebGpuDevice.open({ ...options, subgroupMatrix: options.products === "subgroup_matrix" });
  if (device) return device;
  if (wanted === "webgpu" || isChoice)
    throw new UnsupportedError(
      "Cannot open the device webgpu: there is no WebGPU adapter. Run `npm run setup` for a software one, install your GPU's Vulkan driver, or use --device cpu.",
      { part: "compute", capability: "webgpu" },
    );
  return new CpuDevice(options);
}
