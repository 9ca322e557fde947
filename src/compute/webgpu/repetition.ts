/** Dispatches that are recorded several times, with a param that counts. */
import type { DispatchOp } from "./encoding.ts";

/** The dispatches `times` times, one after another; `param` of those that have it is one more each time. */
export function repetitions(
  ops: readonly DispatchOp[],
  { times, param }: { readonly times: number; readonly param: string },
): DispatchOp[] {
  const kept = ops.map((op) => ({ ...op, repeated: {} }));
  const places = ops.map(({ paramTypes }) => Object.keys(paramTypes).indexOf(param));
  const found: DispatchOp[] = [];
  for (let time = 1; time <= times; time++)
    for (const [i, op] of kept.entries()) found.push(places[i]! < 0 ? op : advanced(op, { at: places[i]!, by: time }));
  return found;
}

function advanced(op: DispatchOp, { at, by }: { at: number; by: number }): DispatchOp {
  const params = op.params.slice();
  params[at]! += by;
  return { ...op, params };
}
