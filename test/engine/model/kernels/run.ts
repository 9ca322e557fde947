/** Runs a kernel on the GPU and as its reference on the same data, and compares every buffer that it writes. */
import { afterAll, beforeAll, expect } from "vitest";
import { CpuDevice } from "../../../../src/engine/compute/cpu.ts";
import type { Buffer, Data, Device } from "../../../../src/engine/compute/device.ts";
import type { BindingKinds, Constants, Kernel, ParamTypes, Values } from "../../../../src/engine/compute/kernel.ts";
import { openDevice } from "../../../../src/engine/compute/open.ts";
import { floats } from "../../../fixtures/numbers.ts";

export interface Run<B extends BindingKinds, P extends ParamTypes> {
  readonly buffers: { readonly [K in keyof B]: Data };
  readonly params: Values<P>;
  readonly constants?: Constants;
}

/** Every buffer's contents after the run, by binding. */
export type Results<B extends BindingKinds> = { readonly [K in keyof B]: Data };

/** Both devices of a test file: opened before its tests, closed after them. */
export function useDevices(): { readonly gpu: Device; readonly cpu: Device } {
  const devices: { gpu?: Device; cpu: Device } = { cpu: new CpuDevice() };
  beforeAll(async () => {
    devices.gpu = await openDevice({ device: process.env.REQUIRE_GPU === "1" ? "webgpu" : "auto" });
    if (devices.gpu.info.kind === "cpu") console.warn("no WebGPU adapter: kernels are compared with themselves");
  });
  afterAll(() => devices.gpu?.destroy());
  return devices as { gpu: Device; cpu: Device };
}

/** Uploads, dispatches once, reads everything back. */
export async function runOn<B extends BindingKinds, P extends ParamTypes>(
  device: Device,
  kernel: Kernel<B, P>,
  { buffers, params, constants }: Run<B, P>,
): Promise<Results<B>> {
  const held: Record<string, Buffer> = {};
  for (const name of Object.keys(buffers)) held[name] = device.upload(buffers[name]!, name);
  device.dispatch(kernel, { buffers: held as never, params, constants });
  const names = Object.keys(buffers);
  const read = await device.read(
    names.map((name) => ({
      buffer: held[name]!,
      type: kernel.bindings[name]!.split(" ")[1]! as "f32",
      length: buffers[name]!.length,
    })),
  );
  device.release(...Object.values(held));
  return Object.fromEntries(names.map((name, i) => [name, read[i]])) as Results<B>;
}

/**
 * Runs on both devices and checks the kernel's own tolerance, and that buffers it only reads are untouched.
 * @returns the GPU's results.
 */
export async function runOnBoth<B extends BindingKinds, P extends ParamTypes>(
  devices: { readonly gpu: Device; readonly cpu: Device },
  kernel: Kernel<B, P>,
  run: Run<B, P>,
): Promise<Results<B>> {
  const got = await runOn(devices.gpu, kernel, run);
  const wanted = await runOn(devices.cpu, kernel, run);
  for (const name of Object.keys(kernel.bindings)) {
    const expected = kernel.bindings[name]!.startsWith("read") ? run.buffers[name] : wanted[name];
    expectClose(got[name]!, expected!, { ...kernel.tolerance, name: `${kernel.name}.${name}` });
  }
  return got;
}

/** The worst element must be within absolute + relative * |wanted|; NaN is never within. */
export function expectClose(
  got: Data,
  wanted: ArrayLike<number>,
  { relative, absolute, name }: { relative: number; absolute: number; name: string },
): void {
  expect(got.length, name).toBe(wanted.length);
  for (let i = 0; i < wanted.length; i++) {
    if (Object.is(got[i], wanted[i])) continue;
    const error = Math.abs(got[i]! - wanted[i]!);
    if (!(error <= absolute + relative * Math.abs(wanted[i]!)))
      expect.fail(`${name}[${i}] is ${got[i]}, the reference gives ${wanted[i]}`);
  }
}

/** Reproducible numbers in [-1, 1). */
export function noise(length: number, seed = 1): Float32Array {
  return floats(length, seed);
}

/** Reproducible integers in [0, below). */
export function integers(length: number, below: number, seed = 1): Uint32Array {
  return Uint32Array.from(noise(length, seed), (x) => Math.min(below - 1, Math.floor(((x + 1) / 2) * below)));
}

/** An unwritten buffer: NaN as f32. */
export function unwritten(length: number): Float32Array {
  return new Float32Array(new Uint32Array(length).fill(0xffff_ffff).buffer);
}

/**
 * Central differences of `loss` along each of `x` (every `stride`-th), against `gradient`.
 * `loss` must be computed in f64 from f32 inputs; the step is large because inputs are f32.
 */
export function expectGradient(
  x: Float32Array,
  gradient: ArrayLike<number>,
  { loss, name, stride = 1, step = 1e-2, tolerance = 2e-3 }: GradientCheck,
): void {
  for (let i = 0; i < x.length; i += stride) {
    const kept = x[i]!;
    const high = Math.fround(kept + step);
    const low = Math.fround(kept - step);
    x[i] = high;
    const above = loss();
    x[i] = low;
    const below = loss();
    x[i] = kept;
    const slope = (above - below) / (high - low);
    expect(Math.abs(gradient[i]! - slope), `${name}[${i}]: ${gradient[i]}, differences give ${slope}`).toBeLessThan(
      tolerance * (1 + Math.abs(slope)),
    );
  }
}

interface GradientCheck {
  readonly loss: () => number;
  readonly name: string;
  readonly stride?: number;
  readonly step?: number;
  readonly tolerance?: number;
}

/** sum of weights * x: a loss whose gradient in x is `weights`. */
export function weightedSum(x: ArrayLike<number>, weights: ArrayLike<number>): number {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += x[i]! * weights[i]!;
  return sum;
}
