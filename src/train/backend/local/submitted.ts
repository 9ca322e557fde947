/** Submits the work that a call of the engine records within that call. */
import type { Device } from "../../../engine/compute/device.ts";

/**
 * Submits what making `made` recorded. Memory that the driver refuses then fails this call, not the next one of another
 * client, which would leave `made` without its values. On failure `made` is released.
 */
export async function submitted<T extends { release(): void }>(device: Device, made: T): Promise<T> {
  try {
    await device.submit();
    return made;
  } catch (error) {
    made.release();
    throw error;
  }
}
