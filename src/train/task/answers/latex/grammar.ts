/** The rules that what is inside of brackets and commands comes back to. */
import type { TokenCursor } from "./cursor.ts";
import type { LatexNode } from "./nodes.ts";

export interface Grammar {
  members(cursor: TokenCursor): LatexNode[];
  relation(cursor: TokenCursor): LatexNode;
  sum(cursor: TokenCursor): LatexNode;
  power(cursor: TokenCursor): LatexNode;
}
