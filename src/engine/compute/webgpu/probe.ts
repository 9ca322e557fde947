/** Finds by trying how much memory an adapter gives, where nothing says it. */

import { budgetOf, type MemoryBudget } from "../budget/machine.ts";
import { formatBytes } from "../memory.ts";
import type { GpuDevice } from "./types.ts";

/** Drivers that move buffers to main memory never refuse, so that trying shows nothing above this. */
const CEILING_BYTES = 8 * 2 ** 30;
const FIRST_BYTES = 256 * 2 ** 20;
const LARGEST_BYTES = 2 ** 30;
const LIMIT_MS = 3000;
/** The rest is for the display, other programs, and what the driver takes besides buffers. */
const SHARE = 3 / 4;
const COPY_DST = 0x8;

/**
 * Allocates and clears growing buffers until the driver refuses, the ceiling is reached or time is up, and frees them.
 * @param gpuDevice a device for this alone: it is destroyed, and may get lost
 */
export async function probeMemory(
  gpuDevice: GpuDevice,
  { ceiling = CEILING_BYTES, limitMs = LIMIT_MS }: { ceiling?: number; limitMs?: number } = {},
): Promise<MemoryBudget> {
  const start = performance.now();
  let isLost = false;
  void gpuDevice.lost.then(() => {
    isLost = true;
  });
  const largest = Math.min(LARGEST_BYTES, gpuDevice.limits.maxBufferSize);
  let step = Math.min(FIRST_BYTES, largest);
  let reached = 0;
  let ending = "before the time was up";
  while (performance.now() - start < limitMs) {
    ending = "the most that is tried";
    if (reached + step > ceiling) break;
    ending = "before the driver refused";
    if (!(await fits(gpuDevice, step)) || isLost) break;
    ending = "before the time was up";
    reached += step;
    step = Math.min(step * 2, largest);
  }
  // Frees the buffers as well.
  gpuDevice.destroy();
  return budgetOf(reached * SHARE, `three quarters of the ${formatBytes(reached)} that could be allocated, ${ending}`);
}

/** Touches every byte: drivers hand out memory at its first use. */
async function fits(gpuDevice: GpuDevice, size: number): Promise<boolean> {
  gpuDevice.pushErrorScope("out-of-memory");
  gpuDevice.pushErrorScope("validation");
  const buffer = gpuDevice.createBuffer({ label: "probe", size, usage: COPY_DST });
  const encoder = gpuDevice.createCommandEncoder();
  encoder.clearBuffer(buffer);
  gpuDevice.queue.submit([encoder.finish()]);
  const scopes = [gpuDevice.popErrorScope(), gpuDevice.popErrorScope()];
  try {
    const errors = await Promise.all(scopes);
    await gpuDevice.queue.onSubmittedWorkDone();
    return errors.every((error) => error === null);
  } catch {
    // The device was lost.
    return false;
  }
}
