/** `\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}`, in any of its brackets. */

import { type TokenCursor, Unreadable } from "./cursor.ts";
import type { Grammar } from "./grammar.ts";
import type { LatexNode } from "./nodes.ts";

/** `\begin` has been read. */
export function matrix(cursor: TokenCursor, grammar: Grammar): LatexNode {
  const name = environment(cursor);
  if (!/^(?:[pbBV]?matrix|smallmatrix|array)$/.test(name)) throw new Unreadable();
  if (name === "array" && cursor.take("{")) while (!cursor.take("}")) cursor.next();
  const rows: LatexNode[][] = [[]];
  for (;;) {
    if (cursor.command() === "end") break;
    rows.at(-1)!.push(grammar.relation(cursor));
    if (cursor.take("\\\\")) rows.push([]);
    else if (!cursor.take("&") && cursor.command() !== "end") throw new Unreadable();
  }
  cursor.skip(1);
  if (environment(cursor) !== name) throw new Unreadable();
  return { kind: "matrix", rows: rows.filter(({ length }) => length > 0) };
}

function environment(cursor: TokenCursor): string {
  cursor.expect("{");
  const name = cursor.next().text;
  cursor.expect("}");
  return name;
}
