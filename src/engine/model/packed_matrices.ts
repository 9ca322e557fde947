/** Frozen matrices in packed formats (compute/packed.ts), in few buffers. */
import { type Buffer, type Device, SLICE_ALIGNMENT_BYTES } from "../compute/device.ts";
import { unpackMatrix } from "../compute/matmul/unpack.ts";
import { capacityFor } from "../compute/memory.ts";
import { FORMAT, matrixBytes, type PackedFormat, scalesBytes } from "../compute/packed.ts";
import { type PackedElements, unpackElements } from "./formats/pack.ts";
import { allocateAll, type ParameterShape } from "./parameters.ts";
import { rowWindows } from "./row_windows.ts";

/** A packed matrix and its place. */
export interface PackedMatrix extends ParameterShape {
  readonly format: PackedFormat;
  readonly buffer: Buffer;
  /** One f32 for each block of 64 elements, for `int8` and `nf4`. */
  readonly scales?: Buffer;
}

/** Buffers hold about this many bytes; a larger matrix has a buffer that others fill up. */
const SHARD_BYTES = 2 ** 26;

export class PackedMatrices {
  readonly byteLength: number;
  readonly matrices: ReadonlyMap<string, PackedMatrix>;
  private readonly device: Device;
  private readonly shards: readonly Buffer[];

  constructor(
    device: Device,
    shapes: Iterable<readonly [string, ParameterShape & { format: PackedFormat }]>,
    label: string,
  ) {
    this.device = device;
    const matrices = [...shapes].map(([name, { rows, columns, format }]) => {
      const [bytes, scales] = [matrixBytes(format, rows * columns), scalesBytes(format, rows * columns)];
      return { name, rows, columns, format, bytes, scales };
    });
    const sizes = matrices.flatMap(({ bytes, scales }) => [bytes, scales]);
    const { places, shardBytes } = fill(sizes, Math.min(SHARD_BYTES, device.info.limits.maxBufferBytes));
    this.shards = allocateAll(device, shardBytes, label);
    for (const shard of this.shards) device.clear(shard);
    this.byteLength = shardBytes.reduce((sum, bytes) => sum + bytes, 0);
    const slice = (i: number, bytes: number) => this.shards[places[i]!.shard]!.slice(places[i]!.byteOffset, bytes);
    this.matrices = new Map(
      matrices.map(({ name, bytes, scales, ...matrix }, i) => {
        const buffer = slice(2 * i, bytes);
        return [name, scales > 0 ? { ...matrix, buffer, scales: slice(2 * i + 1, scales) } : { ...matrix, buffer }];
      }),
    );
  }

  get(name: string): PackedMatrix {
    const matrix = this.matrices.get(name);
    if (!matrix) throw new RangeError(`Cannot find a packed matrix named ${name}.`);
    return matrix;
  }

  /** Writes elements from `first` on, a multiple of 64. */
  write(name: string, { first, words, scales }: PackedElements & { first: number }): void {
    const matrix = this.get(name);
    this.device.write(matrix.buffer, words, matrixBytes(matrix.format, first));
    if (scales) this.device.write(matrix.scales!, scales, scalesBytes(matrix.format, first));
  }

  /** Writes a matrix into an f32 buffer. Records only. */
  unpack(name: string, into: Buffer): void {
    const { rows, columns: width, format, buffer, scales } = this.get(name);
    for (const from of rowWindows(this.device, buffer, { rows, width, format, scales })) {
      const out = into.slice(from.first * width * 4, from.rows * width * 4);
      for (const to of rowWindows(this.device, out, { rows: from.rows, width }))
        this.device.dispatch(unpackMatrix, {
          buffers: { words: from.buffer, scales: from.scales ?? from.buffer, out: to.buffer },
          params: {
            rows: to.rows,
            columns: width,
            offset: to.first * width,
            stride: width,
            out_row: width,
            out_column: 1,
          },
          constants: { FORMAT: FORMAT[format] },
        });
    }
  }

  /** A matrix's elements as f32, exact. */
  async read(name: string): Promise<Float32Array> {
    const { rows, columns, format, buffer, scales } = this.get(name);
    const requests = [{ buffer, type: "u32" as const }, ...(scales ? [{ buffer: scales, type: "f32" as const }] : [])];
    const [words, factors] = (await this.device.read(requests)) as [Uint32Array, Float32Array?];
    return unpackElements(format, { words, scales: factors }, rows * columns);
  }

  release(): void {
    this.device.release(...this.shards);
  }
}

interface Place {
  readonly shard: number;
  readonly byteOffset: number;
}

/** Puts each size into the first shard with room. A shard has room for `least` bytes, or for what its first size is rounded up to. */
function fill(sizes: readonly number[], least: number): { places: Place[]; shardBytes: number[] } {
  const capacities: number[] = [];
  const shardBytes: number[] = [];
  const places = sizes.map((size) => {
    const bytes = Math.ceil(size / SLICE_ALIGNMENT_BYTES) * SLICE_ALIGNMENT_BYTES;
    let shard = capacities.findIndex((capacity, i) => shardBytes[i]! + bytes <= capacity);
    if (shard < 0) {
      shard = capacities.push(capacityFor(Math.max(bytes, least))) - 1;
      shardBytes.push(0);
    }
    const byteOffset = shardBytes[shard]!;
    shardBytes[shard] = byteOffset + bytes;
    return { shard, byteOffset };
  });
  return { places, shardBytes };
}
