/** Keeps secrets out of everything that is printed. */

import { BACKEND_FIELDS, BACKENDS } from "./fields/backend_fields.ts";
import { RLLM_FIELDS } from "./fields/rllm.ts";
import { MASK, maskText } from "./mask.ts";
import { isTree, joinPath, MANDATORY, type Tree, type YamlValue } from "./yaml/tree.ts";

const DECLARED = new Set(
  [RLLM_FIELDS, ...BACKENDS.map((name) => BACKEND_FIELDS[name])].flatMap((fields) =>
    Object.entries(fields)
      .filter(([, field]) => "secret" in field && field.secret)
      .map(([path]) => path),
  ),
);
const SECRET_KEY = /(^|[_-])(token|secret|password|passwd|api_?key|access_?key|private_?key|credentials?)$/i;
/** Tokens of a vocabulary, not secrets. */
const VOCABULARY_KEY = /^(bos|eos|pad|unk|mask|stop|cls|sep|end|start)_token$/i;
/** True when the value at a path must not be shown. */
export function isSecret(path: string): boolean {
  if (DECLARED.has(path)) return true;
  const last = path.slice(path.lastIndexOf(".") + 1);
  return SECRET_KEY.test(last) && !VOCABULARY_KEY.test(last);
}

/** A printable value: secret keys masked completely, passwords in addresses and well-known tokens in part. */
export function maskValue(path: string, value: YamlValue): YamlValue {
  if (isTree(value)) {
    const shown: Tree = {};
    for (const key of Object.keys(value)) shown[key] = maskValue(`${path}.${joinPath(key)}`, value[key]!);
    return shown;
  }
  if (value !== null && value !== "" && value !== MANDATORY && isSecret(path)) return MASK;
  if (Array.isArray(value)) return value.map((item) => maskValue(path, item));
  return typeof value === "string" ? maskText(value) : value;
}

/** An override that is safe to quote. */
export function maskOverride(text: string, key: string): string {
  const equals = text.indexOf("=");
  return equals > 0 && isSecret(key) ? `${text.slice(0, equals + 1)}${MASK}` : maskText(text);
}

/** A printable tree. */
export function maskTree(tree: Tree): Tree {
  const shown: Tree = {};
  for (const key of Object.keys(tree)) shown[key] = maskValue(joinPath(key), tree[key]!);
  return shown;
}

/** A value as a message quotes it. */
export function showSetting(path: string, value: YamlValue | undefined): string {
  const shown = value === undefined ? null : maskValue(path, value);
  return typeof shown === "string" ? shown : JSON.stringify(shown);
}
