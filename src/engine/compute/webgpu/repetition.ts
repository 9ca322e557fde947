/** Recorded work that is kept, and recorded again with a param that counts. */
import type { KeptWork } from "../device.ts";
import type { BufferPool, Reservation } from "../memory.ts";
import type { Storage } from "./allocations.ts";
import { type DispatchOp, type Op, rangesOf, type StorageRange } from "./encoding.ts";

/** The value that a param has. */
interface Param {
  readonly param: string;
  readonly value: number;
}

/** @returns nothing where the work cannot be repeated: {@link Device.keep} */
export function keepOps(
  ops: readonly Op[],
  at: { readonly pool: BufferPool<Storage>; readonly recorded: (ops: readonly Op[]) => void },
): KeptWork | undefined {
  if (ops.some(({ type }) => type === "write" || type === "read")) return undefined;
  const buffers = [...new Set(ops.flatMap((op) => rangesOf(op).map(({ whole }) => whole)))] as StorageRange[];
  const held = buffers.filter((buffer) => at.pool.holds(buffer));
  const outside = new Map(buffers.filter((buffer) => !at.pool.holds(buffer)).map((buffer) => [buffer.id, buffer]));
  // A buffer in use has the storage of one that was released before it.
  if (held.some(({ id }) => outside.has(id))) return undefined;
  const reservation = at.pool.reserve([...outside.values()]);
  return reservation && new KeptOps(ops, { ...at, held, reservation });
}

class KeptOps implements KeptWork {
  private readonly ops: readonly Op[];
  private readonly pool: BufferPool<Storage>;
  /** Buffers of others. */
  private readonly held: readonly StorageRange[];
  private readonly reservation: Reservation;
  private readonly recorded: (ops: readonly Op[]) => void;
  /** The work with its param set, by the value of the param. */
  private readonly byValue = new Map<number, { readonly param: string; readonly ops: readonly Op[] }>();

  constructor(
    ops: readonly Op[],
    at: {
      pool: BufferPool<Storage>;
      held: readonly StorageRange[];
      reservation: Reservation;
      recorded: (ops: readonly Op[]) => void;
    },
  ) {
    this.ops = ops.map((op) => (op.type === "dispatch" ? { ...op, kept: {} } : op));
    this.pool = at.pool;
    this.held = at.held;
    this.reservation = at.reservation;
    this.recorded = at.recorded;
  }

  record({ times, param, from }: { readonly times: number; readonly param: string; readonly from: number }): boolean {
    if (!this.reservation.isHeld || !this.held.every((buffer) => this.pool.holds(buffer))) return false;
    for (let value = from; value < from + times; value++) this.recorded(this.with({ param, value }));
    return true;
  }

  private with({ param, value }: Param): readonly Op[] {
    const index = this.byValue.get(value);
    if (index?.param === param) return index.ops;
    const ops = this.ops.map((op) => (op.type === "dispatch" ? withParam(op, { param, value }) : op));
    this.byValue.set(value, { param, ops });
    return ops;
  }

  release(): void {
    this.reservation.release();
  }
}

function withParam(op: DispatchOp, { param, value }: Param): DispatchOp {
  const place = Object.keys(op.paramTypes).indexOf(param);
  if (place < 0) return op;
  const params = op.params.slice();
  params[place] = value;
  return { ...op, params };
}
