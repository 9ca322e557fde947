/** A device that counts what the real code asks of it: dispatches, their workgroups, bytes and operations, and read-backs. */
import { CountingDevice } from "../../src/engine/compute/counting.ts";
import type { Buffer, Data, DispatchOptions, ReadRequest } from "../../src/engine/compute/device.ts";
import type { BindingKinds, Kernel, ParamTypes } from "../../src/engine/compute/kernel.ts";
import { bytesOf, flopOf } from "./work.ts";

/** One dispatch. */
export interface Dispatch {
  readonly kernel: string;
  readonly workgroups: number;
  /** That must move between memory and the processor at least. */
  readonly bytes: number;
  readonly flop: number;
}

/** A dispatch as kernels describe it, without their types. */
export interface RawDispatch {
  readonly kernel: string;
  readonly bindings: Readonly<Record<string, string>>;
  readonly buffers: Readonly<Record<string, Buffer>>;
  readonly params: Readonly<Record<string, number>>;
  readonly constants: Readonly<Record<string, number>>;
  readonly grid: readonly number[];
  /** The kernel's own count of operations, where it has one. */
  readonly work: number | undefined;
}

export class CostDevice extends CountingDevice {
  /** Tokens that each row's sequence holds, for the kernels that read a cache as far as it is filled. */
  context = 0;
  readonly dispatches: Dispatch[] = [];
  readBacks = 0;

  /** Forgets what was counted. */
  restart(): void {
    this.dispatches.length = 0;
    this.readBacks = 0;
  }

  override dispatch<B extends BindingKinds, P extends ParamTypes>(
    kernel: Kernel<B, P>,
    { buffers, params, constants: own }: DispatchOptions<B, P>,
  ): void {
    const constants = { ...kernel.constants, ...own };
    const grid = kernel.grid(params, constants).map((side) => side ?? 1);
    if (grid.includes(0)) return;
    const work = kernel.work?.(params, constants);
    const raw = { kernel: kernel.name, bindings: kernel.bindings, buffers, params, constants, grid, work };
    this.dispatches.push({
      kernel: kernel.name,
      workgroups: grid.reduce((product, side) => product * side, 1),
      bytes: bytesOf(raw, this.context),
      flop: flopOf(raw, this.context),
    });
  }

  override read(requests: readonly ReadRequest[]): Promise<Data[]> {
    this.readBacks++;
    return super.read(requests);
  }
}
