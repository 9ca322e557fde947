/** The rules that what is inside of brackets and commands comes back to. */
import type { Cursor } from "./cursor.ts";
import type { Node } from "./nodes.ts";

export interface Grammar {
  members(cursor: Cursor): Node[];
  relation(cursor: Cursor): Node;
  sum(cursor: Cursor): Node;
  power(cursor: Cursor): Node;
}
