/** As where the `webgpu` package is not installed: the tests of a file then run on the runtime's own WebGPU. */
import { vi } from "vitest";

vi.mock("../../src/engine/compute/webgpu/dawn.ts", async (importOriginal) => ({
  ...(await importOriginal<object>()),
  openDawn: async () => undefined,
  dawnAdapters: async () => undefined,
}));
