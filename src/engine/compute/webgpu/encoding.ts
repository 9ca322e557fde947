/** Recorded work, and how it becomes command buffers. */
import type { Data } from "../device.ts";
import type { Grid, ParamTypes } from "../kernel.ts";
import type { MemoryRange } from "../memory.ts";
import type { Storage } from "./allocations.ts";
import { LONGEST_SUBMIT_SECONDS, type Pace, type SecondsByKernel } from "./pace.ts";
import type { Pipeline } from "./pipeline.ts";
import type { Timestamps } from "./timestamps.ts";
import type { GpuBindGroup, GpuCommandEncoder, GpuDevice } from "./types.ts";

export type StorageRange = MemoryRange<Storage>;

/** `minUniformBufferOffsetAlignment` at its default: each dispatch's params start at a multiple. */
export const PARAMS_STRIDE_BYTES = 256;

export interface DispatchOp {
  readonly type: "dispatch";
  readonly pipeline: Pipeline;
  readonly buffers: readonly StorageRange[];
  readonly params: Uint32Array;
  /** Names of the params, in order. */
  readonly paramTypes: ParamTypes;
  readonly grid: Grid;
  readonly kernel: string;
  /** Estimated seconds, before any correction. */
  readonly nominal: number;
  /** Shared by repetitions of a dispatch: their bind group, once one of them is encoded, and the era that it is of. */
  readonly kept?: { group?: GpuBindGroup; era?: object };
}
interface WriteOp {
  readonly type: "write";
  readonly buffer: StorageRange;
  readonly data: Data;
  readonly byteOffset: number;
}
interface CopyOp {
  readonly type: "copy";
  readonly from: StorageRange;
  readonly to: StorageRange;
  readonly byteLength: number;
}
interface ClearOp {
  readonly type: "clear";
  readonly buffer: StorageRange;
}
/** Copies for the host, at the end of a submit. */
interface ReadOp {
  readonly type: "read";
  readonly buffers: readonly StorageRange[];
  record(encoder: GpuCommandEncoder): void;
}
export type Op = DispatchOp | WriteOp | CopyOp | ClearOp | ReadOp;

/** The memory that an operation uses. */
export function rangesOf(op: Op): readonly StorageRange[] {
  if (op.type === "dispatch" || op.type === "read") return op.buffers;
  return op.type === "copy" ? [op.from, op.to] : [op.buffer];
}

interface BindGroups {
  /** Another object once bind groups that were made before may name what is destroyed. */
  readonly era: object;
  group(op: DispatchOp): GpuBindGroup;
}

/** The device that an encoding is for. */
export interface EncodingTarget {
  readonly gpuDevice: GpuDevice;
  readonly bindings: BindGroups;
  readonly pace: Pace;
  /** Timer of each dispatch. */
  readonly timestamps?: Timestamps | undefined;
  writeNow(range: StorageRange, data: Data, byteOffset: number): void;
}

/** Work whose time is measured: a submit, or a few that are short. */
export interface TimedWork {
  readonly work: SecondsByKernel;
  /** When the GPU was done with it, in ms; undefined after a failure. The last piece has none: its caller waits for it. */
  readonly done: Promise<number | undefined> | undefined;
}

/** Shorter submits are measured with the next. */
const LEAST_TIMED_SECONDS = LONGEST_SUBMIT_SECONDS / 10;

/**
 * One pass over recorded work: consecutive dispatches share a compute pass; a write ends the submit before it, and so does
 * an operation with which the submit would take too long.
 */
export class CommandEncoding {
  private readonly target: EncodingTarget;
  private readonly ops: readonly Op[];
  private readonly timestamps: Timestamps | undefined;
  private encoder: GpuCommandEncoder;
  private pass: GPUComputePassEncoder | undefined;
  /** The pipeline that the pass has. */
  private pipeline: Pipeline | undefined;
  /** Whether the encoder has nothing to submit. */
  private isEmpty = true;
  private dispatched = 0;
  /** Estimated seconds of the submit that is being encoded. */
  private seconds = 0;
  private work: SecondsByKernel = new Map();
  private readonly pieces: TimedWork[] = [];

  constructor(target: EncodingTarget, ops: readonly Op[]) {
    this.target = target;
    this.ops = ops;
    this.timestamps = target.timestamps;
    this.encoder = target.gpuDevice.createCommandEncoder();
  }

  /** @returns what was submitted, to learn from */
  run(): readonly TimedWork[] {
    for (const op of this.ops) this.add(op);
    this.submit();
    return [...this.pieces, { work: this.work, done: undefined }];
  }

  private submit(): void {
    this.endPass();
    this.timestamps?.resolve(this.encoder);
    this.target.gpuDevice.queue.submit([this.encoder.finish()]);
    this.timestamps?.collect();
    if (this.seconds >= LEAST_TIMED_SECONDS) this.endPiece();
    this.seconds = 0;
  }

  private restart(): void {
    this.submit();
    this.encoder = this.target.gpuDevice.createCommandEncoder();
    this.isEmpty = true;
  }

  private endPiece(): void {
    const done = this.target.gpuDevice.queue.onSubmittedWorkDone().then(
      () => performance.now(),
      () => undefined,
    );
    this.pieces.push({ work: this.work, done });
    this.work = new Map();
  }

  /** Begins another submit where this operation would make the present one too long. */
  private account(kernel: string, nominal: number): void {
    const seconds = this.target.pace.seconds(kernel, nominal);
    if (this.seconds > 0 && this.seconds + seconds > LONGEST_SUBMIT_SECONDS) {
      this.restart();
    }
    this.seconds += seconds;
    this.work.set(kernel, (this.work.get(kernel) ?? 0) + nominal);
  }

  private add(op: Op): void {
    if (op.type === "write") {
      this.write(op);
      return;
    }
    if (op.type === "dispatch") {
      this.account(op.kernel, op.nominal);
      this.dispatch(op);
    } else {
      this.endPass();
      this.move(op);
    }
    this.isEmpty = false;
  }

  /** Ends the submit before it, where there is something in it. */
  private write(op: WriteOp): void {
    if (!this.isEmpty) this.restart();
    this.target.writeNow(op.buffer, op.data, op.byteOffset);
  }

  private move(op: CopyOp | ClearOp | ReadOp): void {
    if (op.type === "copy") {
      const { from, to, byteLength } = op;
      this.account("copy", this.target.pace.nominal({ bytes: 2 * byteLength }));
      this.encoder.copyBufferToBuffer(
        from.storage.buffer,
        from.byteOffset,
        to.storage.buffer,
        to.byteOffset,
        byteLength,
      );
    } else if (op.type === "read") {
      op.record(this.encoder);
    } else {
      const { storage, byteOffset, byteLength } = op.buffer;
      this.account("clear", this.target.pace.nominal({ bytes: byteLength }));
      this.encoder.clearBuffer(storage.buffer, byteOffset, Math.ceil(byteLength / 4) * 4);
    }
  }

  private dispatch(op: DispatchOp): void {
    if (this.timestamps) this.endPass();
    this.pass ??= this.encoder.beginComputePass(
      this.timestamps && { timestampWrites: this.timestamps.writesFor(op.kernel) },
    );
    const { pass } = this;
    const { pipeline } = op;
    if (pipeline !== this.pipeline) {
      pass.setPipeline(pipeline.compiled);
      this.pipeline = pipeline;
    }
    const group = this.groupOf(op);
    if (pipeline.paramsBytes > 0) pass.setBindGroup(0, group, [this.dispatched * PARAMS_STRIDE_BYTES]);
    else pass.setBindGroup(0, group);
    this.dispatched++;
    const [x, y = 1, z = 1] = op.grid;
    // Each argument costs time in Node's binding.
    if (y === 1 && z === 1) pass.dispatchWorkgroups(x);
    else pass.dispatchWorkgroups(x, y, z);
  }

  private groupOf(op: DispatchOp): GpuBindGroup {
    const { bindings } = this.target;
    const { kept } = op;
    if (!kept) return bindings.group(op);
    if (!kept.group || kept.era !== bindings.era) {
      kept.group = bindings.group(op);
      kept.era = bindings.era;
    }
    return kept.group;
  }

  private endPass(): void {
    this.pass?.end();
    this.pass = undefined;
    this.pipeline = undefined;
  }
}

const PARAMS = new ArrayBuffer(PARAMS_STRIDE_BYTES);
const AS = { f32: new Float32Array(PARAMS), u32: new Uint32Array(PARAMS), i32: new Int32Array(PARAMS) };

/** The words of a `Params` struct. */
export function packParams(types: ParamTypes, values: Readonly<Record<string, number>>): Uint32Array {
  let count = 0;
  for (const name in types) AS[types[name]!][count++] = values[name]!;
  return AS.u32.slice(0, count);
}
