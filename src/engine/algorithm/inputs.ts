/** Host arrays of a call on their way to a device. */
import type { Buffer, Device, Recorded } from "../compute/device.ts";
import { rowsOfTokens } from "../packing/offsets.ts";
import type { MaskedRows } from "./rows.ts";

/** Uploads that live for one call. */
export class Inputs {
  private readonly device: Device;
  private readonly buffers: Buffer[] = [];

  constructor(device: Device) {
    this.device = device;
  }

  ints(data: Uint32Array, label: string): Buffer {
    return this.upload(data, label);
  }

  floats(data: ArrayLike<number>, label: string): Buffer {
    return this.upload(data instanceof Float32Array ? data : Float32Array.from(data), label);
  }

  optional(data: ArrayLike<number> | undefined, label: string): Buffer | undefined {
    return data && this.floats(data, label);
  }

  /** How the rows of a batch lie. */
  rows({ offsets, mask }: MaskedRows) {
    return {
      mask: this.ints(mask, "mask"),
      offsets: this.ints(offsets, "offsets"),
      trajectoryOfToken: this.ints(rowsOfTokens(offsets), "row of token"),
    };
  }

  /** The result of a recording and further f32 buffers of `length`, in one read; then releases both sides' buffers. */
  async read<R>(
    recorded: Recorded<R>,
    buffers: readonly Buffer[],
    length: number,
  ): Promise<[R, readonly Float32Array[]]> {
    try {
      const more = buffers.map((buffer) => ({ buffer, type: "f32" as const, length }));
      const data = (await this.device.read([...recorded.reads, ...more])) as Float32Array[];
      const readCount = recorded.reads.length;
      return [recorded.decode(data.slice(0, readCount)), data.slice(readCount)];
    } finally {
      recorded.release();
      this.release();
    }
  }

  release(): void {
    this.device.release(...this.buffers);
  }

  private upload(data: Float32Array | Uint32Array, label: string): Buffer {
    const buffer = this.device.upload(data, label);
    this.buffers.push(buffer);
    return buffer;
  }
}
