/** The rows that the loop reads, by the loop's own paths, and the types of its settings: both follow from the tables. */
import { setAt, type Tree, type YamlValue } from "../yaml/tree.ts";
import type { Field, FieldTable, ValueOf } from "./field.ts";
import { LOCAL_FIELDS } from "./local.ts";
import { RLLM_FIELDS } from "./rllm.ts";

type Table = typeof RLLM_FIELDS & typeof LOCAL_FIELDS;
type LoopPath<P> = P extends `rllm.${infer Rest}` ? Rest : P;
type Flat = {
  readonly [P in keyof Table as Table[P] extends { loop: unknown } ? LoopPath<P> : never]: ValueOf<Table, P>;
};
type Head<P> = P extends `${infer First}.${string}` ? First : P;
type Below<F, H extends string> = {
  readonly [P in keyof F as P extends `${H}.${infer Rest}` ? Rest : never]: F[P];
};
type Nested<F> = { readonly [H in Head<keyof F> & string]: H extends keyof F ? F[H] : Nested<Below<F, H>> };

/** Every setting that the loop reads, in the sections and under the names of the configuration. */
export type LoopTree = Nested<Flat>;

export interface LoopRow {
  /** Path in a configuration: `rllm.rollout.n`. */
  readonly path: string;
  /** Path in the loop's settings: `rollout.n`. */
  readonly at: string;
  readonly field: Field;
  /** The value where nothing is given. */
  readonly usual: YamlValue;
}

const TABLE: FieldTable = { ...RLLM_FIELDS, ...LOCAL_FIELDS };

export const LOOP_ROWS: readonly LoopRow[] = Object.entries(TABLE).flatMap(([path, field]) => {
  if (field.loop === undefined) return [];
  const usual = field.loop === true ? field.default : field.loop.default;
  return [{ path, at: path.replace(/^rllm\./, ""), field, usual }];
});

/** The loop's settings as `read` returns them; undefined means the row's default. */
export function loopTree(read: (row: LoopRow) => YamlValue | undefined): LoopTree {
  const tree: Tree = {};
  for (const row of LOOP_ROWS) {
    const value = read(row);
    setAt(tree, row.at, value === undefined ? row.usual : value);
  }
  return tree as unknown as LoopTree;
}
