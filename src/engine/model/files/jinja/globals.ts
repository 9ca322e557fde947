/** Functions that Jinja2 gives every template. */
import { cycler, joiner } from "./loop.ts";
import {
  AttributeObject,
  Dict,
  isDict,
  isPythonInt,
  itemsOf,
  type JinjaValue,
  type PythonCallable,
  View,
  type WorkCounter,
} from "./value.ts";

/** Items of the longest range that Jinja2's sandbox makes. */
const LONGEST_RANGE = 100_000;

/** `dict(mapping, key=value)`. */
function dictOf(args: readonly JinjaValue[], named: ReadonlyMap<string, JinjaValue>, work: WorkCounter): Dict {
  const [from] = args;
  if (args.length > 1) throw new Error(`dict takes at most 1 argument (${args.length})`);
  if (from === undefined) return new Dict(named);
  if (isDict(from)) {
    work.room(from.size);
    return new Dict([...from, ...named]);
  }
  const pairs = itemsOf(from, work).map((pair, i) => {
    const [key, value, ...others] = itemsOf(pair, work);
    if (key === undefined || value === undefined || others.length > 0)
      throw new Error(`dictionary update sequence element #${i} has not length 2`);
    return [key, value] as const;
  });
  return new Dict([...pairs, ...named]);
}

function range(args: readonly JinjaValue[], call: { named: ReadonlyMap<string, JinjaValue>; work: WorkCounter }): View {
  const isFit = args.length >= 1 && args.length <= 3 && call.named.size === 0 && args.every(isPythonInt);
  const numbers = args.map(Number);
  const [start = 0, stop = 0, step = 1] = numbers.length > 1 ? numbers : [0, ...numbers];
  if (!isFit || step === 0) throw new Error("range takes one to three whole numbers, and a step other than 0");
  const length = Math.max(Math.ceil((stop - start) / step), 0);
  if (length > LONGEST_RANGE) throw new Error(`a range has at most ${LONGEST_RANGE} items (${length})`);
  call.work.room(length);
  const items = Array.from({ length }, (_, i) => start + i * step);
  return new View("range", items, [start, stop, step]);
}

/** Returns the global functions by name. */
export function functions(work: WorkCounter): ReadonlyMap<string, JinjaValue> {
  const globals: Readonly<Record<string, PythonCallable>> = {
    cycler,
    dict: (args, named) => dictOf(args, named, work),
    joiner,
    lipsum: () => {
      throw new Error("lipsum is not supported");
    },
    namespace: (args, named) => {
      const values = Array.from(dictOf(args, named, work), ([key, value]) => [key as string, value] as const);
      return new AttributeObject("Namespace", { values: new Map(values) });
    },
    range: (args, named) => range(args, { named, work }),
  };
  return new Map(Object.entries(globals));
}
