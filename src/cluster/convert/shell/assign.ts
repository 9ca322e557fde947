/** Assignments: `NAME=value`, `NAME+=value`, `LIST=(...)`, `LIST[i]=value`. */
import type { Assignment } from "unbash";
import { evaluateText } from "./arithmetic.ts";
import type { Shell } from "./shell.ts";
import { isShellArray, type Variable } from "./state.ts";
import type { Item } from "./text.ts";
import { expandFields } from "./words.ts";

export function assign(shell: Shell, { name, value, append, index, pos }: Assignment): void {
  const line = shell.lineAt(pos);
  const oldOf = () => (append ? shell.variable(name, line, { hasDefault: true }) : undefined);
  if (value.type === "ArrayValue") {
    const old = oldOf();
    shell.setVariable(name, readList(shell, { name, old, value }));
    return;
  }
  const text = shell.expandText(value);
  if (index !== undefined) {
    const raw = shell.expandText(index);
    const key = shell.isMap(name) ? raw : evaluateText(shell, raw, index.pos);
    if (key === undefined) shell.refuse(`it sets an element of ${name} with an unknown index`, pos);
    const before = append ? (shell.variableText(`${name}[${key}]`, line) ?? "") : "";
    shell.setElement(name, String(key), { text: before + text, line });
    return;
  }
  // The text may set the variable: X+=${X:=1}.
  const old = oldOf();
  if (old !== undefined && isShellArray(old))
    shell.setElement(name, "0", { text: (old.get("0")?.text ?? "") + text, line });
  else shell.setVariable(name, { text: (old === undefined ? "" : old.text) + text, line });
}

interface ListValue {
  readonly name: string;
  readonly old: Variable | undefined;
  readonly value: Extract<Assignment["value"], { type: "ArrayValue" }>;
}

function readList(shell: Shell, { name, old, value }: ListValue): Variable {
  const list = new Map<string, Item>(old === undefined ? [] : isShellArray(old) ? old : [["0", old]]);
  let next = Math.max(-1, ...[...list.keys()].map(Number).filter(Number.isInteger)) + 1;
  for (const word of value.elements) {
    const keyed = /^\[([^\]]+)\]=/.exec(word.text);
    if (keyed) {
      const [, key] = keyed;
      const text = shell.expandText(word).slice(keyed[0].length);
      const plain = key!.replace(/^(["'])(.*)\1$/, "$2");
      if (!/^[\w.-]+$/.test(plain)) return shell.refuse(`an index of ${name} is not plain text`, word.pos);
      list.set(plain, { text, line: shell.lineAt(word.pos) });
      if (/^\d+$/.test(plain)) next = Number(plain) + 1;
      continue;
    }
    for (const item of expandFields(shell, [word])) list.set(String(next++), item);
  }
  return list;
}
