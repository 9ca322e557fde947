/** Recorded work, and how it becomes command buffers. */
import type { Data } from "../device.ts";
import type { Grid, ParamTypes } from "../kernel.ts";
import type { MemoryRange } from "../memory.ts";
import type { Pipeline } from "./pipeline.ts";
import type { GpuBindGroup, GpuBuffer, GpuCommandEncoder, GpuDevice } from "./types.ts";

export type Range = MemoryRange<GpuBuffer>;

/** `minUniformBufferOffsetAlignment` at its default: each dispatch's params start at a multiple. */
export const PARAMS_STRIDE_BYTES = 256;

export interface DispatchOp {
  readonly type: "dispatch";
  readonly pipeline: Pipeline;
  readonly buffers: readonly Range[];
  readonly params: ArrayBuffer;
  readonly grid: Grid;
}
interface WriteOp {
  readonly type: "write";
  readonly buffer: Range;
  readonly data: Data;
  readonly byteOffset: number;
}
interface CopyOp {
  readonly type: "copy";
  readonly from: Range;
  readonly to: Range;
  readonly byteLength: number;
}
interface ClearOp {
  readonly type: "clear";
  readonly buffer: Range;
}
export type Op = DispatchOp | WriteOp | CopyOp | ClearOp;

interface BindGroups {
  storageGroup(op: DispatchOp): GpuBindGroup;
  paramsGroup(op: DispatchOp): GpuBindGroup;
}

/** The device that an encoding is for. */
export interface EncodingTarget {
  readonly gpuDevice: GpuDevice;
  readonly bindings: BindGroups;
  writeNow(range: Range, data: Data, byteOffset: number): void;
}

/** One pass over recorded work: consecutive dispatches share a compute pass; a write ends the submit before it. */
export class Encoding {
  private readonly target: EncodingTarget;
  private readonly ops: readonly Op[];
  private encoder: GpuCommandEncoder;
  private pass: GPUComputePassEncoder | undefined;
  private dispatched = 0;

  constructor(target: EncodingTarget, ops: readonly Op[]) {
    this.target = target;
    this.ops = ops;
    this.encoder = target.gpuDevice.createCommandEncoder();
  }

  run(finish: (encoder: GpuCommandEncoder) => void): void {
    for (const op of this.ops) this.add(op);
    this.endPass();
    finish(this.encoder);
    this.target.gpuDevice.queue.submit([this.encoder.finish()]);
  }

  private add(op: Op): void {
    if (op.type === "dispatch") {
      this.dispatch(op);
      return;
    }
    this.endPass();
    if (op.type === "copy") {
      const { from, to, byteLength } = op;
      this.encoder.copyBufferToBuffer(from.storage, from.byteOffset, to.storage, to.byteOffset, byteLength);
    } else if (op.type === "clear") {
      this.encoder.clearBuffer(op.buffer.storage, op.buffer.byteOffset, Math.ceil(op.buffer.byteLength / 4) * 4);
    } else {
      this.target.gpuDevice.queue.submit([this.encoder.finish()]);
      this.target.writeNow(op.buffer, op.data, op.byteOffset);
      this.encoder = this.target.gpuDevice.createCommandEncoder();
    }
  }

  private dispatch(op: DispatchOp): void {
    this.pass ??= this.encoder.beginComputePass();
    this.pass.setPipeline(op.pipeline.compiled);
    this.pass.setBindGroup(0, this.target.bindings.storageGroup(op));
    if (op.pipeline.paramsBytes > 0)
      this.pass.setBindGroup(1, this.target.bindings.paramsGroup(op), [this.dispatched * PARAMS_STRIDE_BYTES]);
    this.dispatched++;
    this.pass.dispatchWorkgroups(op.grid[0], op.grid[1] ?? 1, op.grid[2] ?? 1);
  }

  private endPass(): void {
    this.pass?.end();
    this.pass = undefined;
  }
}

/** The bytes of a `Params` struct. */
export function packParams(types: ParamTypes, values: Readonly<Record<string, number>>): ArrayBuffer {
  const names = Object.keys(types);
  const view = new DataView(new ArrayBuffer(names.length * 4));
  for (const [i, name] of names.entries()) {
    const value = values[name]!;
    if (types[name] === "f32") view.setFloat32(i * 4, value, true);
    else if (types[name] === "u32") view.setUint32(i * 4, value, true);
    else view.setInt32(i * 4, value, true);
  }
  return view.buffer;
}
