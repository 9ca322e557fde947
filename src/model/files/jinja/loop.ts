/** The variable `loop`. */
import { Fields, isEqual, orUndefined, Tuple, type Value, type Work } from "./value.ts";

/** What `loop.changed` was last called with, over the iterations of one loop. */
export interface Changed {
  changed?: Value;
}

/** The variable's attributes in iteration `i`. */
export function loopFields(
  items: readonly Value[],
  i: number,
  { state, work }: { state: Changed; work: Work },
): Fields {
  const { length } = items;
  const values: Record<string, Value> = {
    index: i + 1,
    index0: i,
    revindex: length - i,
    revindex0: length - i - 1,
    first: i === 0,
    last: i === length - 1,
    length,
    depth: 1,
    depth0: 0,
    previtem: orUndefined(items[i - 1], "previtem"),
    nextitem: orUndefined(items[i + 1], "nextitem"),
    cycle: (args) => {
      const item = args[i % args.length];
      if (item === undefined) throw new Error("loop.cycle takes the items to go through");
      return item;
    },
    changed: (args) => {
      const now = new Tuple(args);
      const isSame = state.changed !== undefined && isEqual(state.changed, now, work);
      state.changed = now;
      return !isSame;
    },
  };
  return new Fields("LoopContext", new Map(Object.entries(values)));
}
