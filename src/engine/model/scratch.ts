/** Buffers of one piece of work, released together. */
import type { Buffer, Data, Device } from "../compute/device.ts";

export class Scratch {
  readonly device: Device;
  private readonly held = new Set<Buffer>();

  constructor(device: Device) {
    this.device = device;
  }

  /** Runs `record` with a scratch that is released after it, also where it throws. */
  static during<R>(device: Device, record: (scratch: Scratch) => R): R {
    const scratch = new Scratch(device);
    try {
      return record(scratch);
    } finally {
      scratch.release();
    }
  }

  /** Runs `record` with a scratch that is released where it throws, and else belongs to what it returns. */
  static unlessThrown<R>(device: Device, record: (scratch: Scratch) => R): R {
    const scratch = new Scratch(device);
    try {
      return record(scratch);
    } catch (error) {
      scratch.release();
      throw error;
    }
  }

  /** Runs `record` with a scratch that is released after it. Where it throws, what it recorded and did not submit is forgotten. */
  static async recording<R>(device: Device, record: (scratch: Scratch) => Promise<R>): Promise<R> {
    const scratch = new Scratch(device);
    const mark = device.mark();
    try {
      return await record(scratch);
    } catch (error) {
      device.rollback(mark);
      throw error;
    } finally {
      scratch.release();
    }
  }

  /** f32 elements with undefined contents. */
  floats(length: number, label: string): Buffer {
    const buffer = this.device.alloc(length * 4, label);
    this.held.add(buffer);
    return buffer;
  }

  upload(data: Data, label: string): Buffer {
    const buffer = this.device.upload(data, label);
    this.held.add(buffer);
    return buffer;
  }

  /** Takes ownership of a buffer allocated elsewhere. */
  adopt(buffer: Buffer): Buffer {
    this.held.add(buffer);
    return buffer;
  }

  /** Releases buffers early; those that it does not hold stay. */
  free(...buffers: readonly Buffer[]): void {
    for (const buffer of buffers) if (this.held.delete(buffer)) this.device.release(buffer);
  }

  release(): void {
    for (const buffer of this.held) this.device.release(buffer);
    this.held.clear();
  }
}
